{{/*
Refuses a connector of the values that the API server or a worker would refuse late, in the job that applies it, and what
YAML would change in silence. Shows no value that may be a secret. Of (dict "root" . "name" NAME "config" CONFIG).
*/}}
{{- define "headrace.checkConnector" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $config := .config -}}
{{- $key := printf "connect.connectors.%s" $name -}}
{{- if and (hasKey $config "name") (ne (toString $config.name) $name) -}}
{{- fail (printf "%s.name: its name is its key, leave it out" $key) -}}
{{- end -}}
{{- $size := add (len $name) (mul 2 (sub (len (splitList "." $name)) 1)) -}}
{{- if gt $size 80 -}}
{{- fail (printf "%s: its name has %d bytes in ids, where a dot is %%2E; 80 is the most: give it a shorter one" $key $size) -}}
{{- end -}}
{{- $class := get $config "connector.class" -}}
{{- $plain := eq (lower (toString (get $config "allow.plain.secrets"))) "true" -}}
{{- $size = add (len "name") (len $name) -}}
{{- range $setting, $value := omit $config "name" -}}
{{- $of := printf "%s.%s" $key $setting -}}
{{- range ternary $value (list $value) (kindIs "slice" $value) -}}
{{- if and (kindIs "float64" .) (or (ge . 9007199254740992.0) (le . -9007199254740992.0)) -}}
{{- fail (printf "%s: YAML does not keep so large a number exactly: put it in quotes" $of) -}}
{{- end -}}
{{- if and (kindIs "slice" $value) (contains "," (toString .)) -}}
{{- fail (printf "%s: %q has a comma, which would part it: write the whole list as one text" $of .) -}}
{{- end -}}
{{- end -}}
{{- $text := include "headrace.scalar" $value -}}
{{- $size = add $size (len $setting) (len $text) -}}
{{- $references := regexFindAll "\\$\\{[a-z]+:[^{}]*\\}" $text -1 -}}
{{- range $references -}}
{{- include "headrace.checkReference" (dict "root" $root "of" $of "reference" .) -}}
{{- end -}}
{{- if and $text (not $plain) (ne $setting "allow.plain.secrets") -}}
{{- if or (and (not $references) (include "headrace.isSecret" (dict "class" $class "setting" $setting))) (regexMatch "://[^/?#@\\s]*:[^/?#@\\s]+@" (regexReplaceAll "\\$\\{[a-z]+:[^{}]*\\}" $text "")) -}}
{{- fail (printf "%s: a secret stands here for all to read: put it into a Secret that connect.secrets names, and refer to it, as in ${dir:/etc/headrace/secrets/NAME:KEY}; or set allow.plain.secrets" $of) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt $size 262144 -}}
{{- fail (printf "%s: the configuration has %d bytes; 262144 is the most" $key $size) -}}
{{- end -}}
{{- end -}}

{{/* Whether a setting of a connector is a secret: by the names that workers go by, or as the connector says. */}}
{{- define "headrace.isSecret" -}}
{{- if or (regexMatch "(^|[._-])(password|passwd|passphrase|pwd|secret|secrets|token|credential|credentials|api[._-]?key|private[._-]?key|access[._-]?key|secret[._-]?key)$" (lower .setting)) (regexMatch "^http-[a-z-]+/(authorization|signature\\.secret\\.previous)$" (printf "%v/%s" .class .setting)) }}true{{ end -}}
{{- end -}}

{{/* Refuses a reference to a secret that no worker has. */}}
{{- define "headrace.checkReference" -}}
{{- $how := regexFind "[a-z]+" .reference -}}
{{- $what := trimSuffix "}" (trimPrefix (printf "${%s:" $how) .reference) -}}
{{- $said := printf "%s: %s" .of .reference -}}
{{- if eq $how "env" -}}
{{- if not $what }}{{ fail (printf "%s is not complete; it is ${env:NAME}" $said) }}{{ end -}}
{{- $allowed := default list (default dict .root.Values.config.connect).env_allowed -}}
{{- if not (has $what (splitList "," (include "headrace.scalar" $allowed))) -}}
{{- fail (printf "%s: config.connect.env_allowed does not have %s, which may come from connect.extraEnv" $said $what) -}}
{{- end -}}
{{- else if has $how (list "dir" "file") -}}
{{- $path := regexReplaceAll ":[^:]*$" $what "" -}}
{{- if or (not (contains ":" $what)) (hasSuffix ":" $what) -}}
{{- fail (printf "%s is not complete; it is ${%s:%s}" $said $how (ternary "DIRECTORY:FILE" "PATH:KEY" (eq $how "dir"))) -}}
{{- end -}}
{{- if or (not (regexMatch "^/etc/headrace/secrets/[^/]" $path)) (regexMatch "(^|/)\\.\\.(/|$)" $path) -}}
{{- fail (printf "%s: what workers may read is below /etc/headrace/secrets/NAME, with NAME in connect.secrets" $said) -}}
{{- end -}}
{{- $secret := regexReplaceAll "/.*" (trimPrefix "/etc/headrace/secrets/" $path) "" -}}
{{- if not (has $secret .root.Values.connect.secrets) -}}
{{- fail (printf "%s: connect.secrets does not have %s, so it would not be mounted" $said $secret) -}}
{{- end -}}
{{- else -}}
{{- fail (printf "%s: there is no %q; refer to secrets as ${dir:DIRECTORY:FILE}, ${file:PATH:KEY} or ${env:NAME}" $said $how) -}}
{{- end -}}
{{- end -}}
