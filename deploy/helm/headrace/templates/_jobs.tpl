{{/*
The pod of a job of ours. Takes root, component (job, client and users, which are clients; backup, node-token or certificates), service
(whose image), command, mounts, volumes, account if it asks the API server, asks if it asks the cluster: it shows
the administrator's key then, or that in the Secret own, or with token that of its account; and lasts if it is no job.
*/}}
{{- define "headrace.jobPod" -}}
metadata:
  labels:
    {{- include "headrace.selector" (dict "root" .root "component" .component) | nindent 4 }}
spec:
  {{- include "headrace.jobSpec" . | nindent 2 }}
{{- end -}}

{{- define "headrace.jobSpec" -}}
{{- $key := dict -}}
{{- $shows := pick . "root" "own" -}}
{{- if .token }}{{ $_ := set $shows "account" .account }}{{ end -}}
{{- $token := and .asks (include "headrace.showsToken" $shows) -}}
{{- $client := has .component (list "job" "client" "users") -}}
{{- if .asks }}{{ $key = fromYaml (include "headrace.apiKey" $shows) }}{{ end -}}
restartPolicy: {{ ternary "Always" "Never" (not (empty .lasts)) }}
{{- if .lasts }}
terminationGracePeriodSeconds: 1
{{- end }}
{{- with .account }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- include "headrace.pullSecrets" .root }}
{{- with .root.Values.admin.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.admin.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "headrace.podSecurity" .root | nindent 2 }}
containers:
  - name: {{ .name }}
    image: {{ include "headrace.image" (dict "root" .root "service" .service) }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command:
      {{- toYaml .command | nindent 6 }}
    env:
      {{- include "headrace.podEnv" .root | nindent 6 }}
      {{- if $client }}
      - name: HEADRACE_BOOTSTRAP
        value: {{ include "headrace.bootstrap" .root }}
      {{- with (include "headrace.caEnv" .root) }}{{ trim . | nindent 6 }}{{ end }}
      {{- end }}
      {{- if $key }}
      {{- include "headrace.apiKeyEnv" $shows | trim | nindent 6 }}
      {{- end }}
    resources:
      {{- toYaml (ternary .root.Values.resources.client .root.Values.resources.jobs (eq .component "client")) | nindent 6 }}
    securityContext:
      {{- include "headrace.containerSecurity" .root | nindent 6 }}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      {{- if and $client .root.Values.tls.enabled }}
      - name: tls
        mountPath: /etc/headrace/tls
        readOnly: true
      {{- end }}
      {{- with $key }}
      {{- include "headrace.secretMount" . | nindent 6 }}
      {{- end }}
      {{- if $token }}
      {{- include "headrace.tokenMount" . | nindent 6 }}
      {{- end }}
      {{- with .mounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 64Mi
  {{- if and $client .root.Values.tls.enabled }}
  {{- include "headrace.caVolume" .root | nindent 2 }}
  {{- end }}
  {{- with $key }}
  {{- include "headrace.secretVolume" . | nindent 2 }}
  {{- end }}
  {{- if $token }}
  {{- include "headrace.tokenVolume" .root | nindent 2 }}
  {{- end }}
  {{- with .volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
The backup or restore of metadata: a job's pod with the volume for backups. Takes root, name, command, and shown if it is to see the
certificate or key of backups: what headrace.backupCertificate or headrace.backupKey has said.
*/}}
{{- define "headrace.backupPod" -}}
{{- $name := printf "%s-etcd-backup" (include "headrace.fullname" .root) -}}
{{- $etcd := fromYaml (include "headrace.etcdClientVolume" .root) -}}
{{- $mounts := concat (list (dict "name" "backup" "mountPath" "/var/lib/headrace")) (default list $etcd.mounts) -}}
{{- $volumes := concat (list (dict "name" "backup" "persistentVolumeClaim" (dict "claimName" $name))) (default list $etcd.volumes) -}}
{{- with .shown -}}
{{- $mounts = append $mounts (dict "name" "backup-key" "mountPath" "/etc/headrace/backup" "readOnly" true) -}}
{{- $volumes = append $volumes (merge (dict "name" "backup-key") .volume) -}}
{{- end -}}
{{- include "headrace.jobPod" (merge (dict "component" "backup" "service" "controller" "mounts" $mounts "volumes" $volumes) .) -}}
{{- end -}}

{{/* The certificate that backups are encrypted to, as a volume and where it is then; nothing: they are not. */}}
{{- define "headrace.backupCertificate" -}}
{{- with .Values.etcd.backup.encryptTo -}}
{{- $items := list (dict "key" .key "path" .key) -}}
{{- if .secret }}
volume: {{ toJson (dict "secret" (dict "secretName" .secret "defaultMode" 288 "items" $items)) }}
file: /etc/headrace/backup/{{ .key }}
{{- else if .configMap }}
volume: {{ toJson (dict "configMap" (dict "name" .configMap "items" $items)) }}
file: /etc/headrace/backup/{{ .key }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The same of the key that opens them. */}}
{{- define "headrace.backupKey" -}}
{{- with .Values.etcd.restore.decryptWith -}}
{{- if .secret }}
volume: {{ toJson (dict "secret" (dict "secretName" .secret "defaultMode" 288 "items" (list (dict "key" .key "path" .key)))) }}
file: /etc/headrace/backup/{{ .key }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headrace.backupCommand" -}}
- python
- -m
- headrace_controller.backup
- --cluster
- {{ default "headrace" .Values.config.controller.cluster }}
{{ include "headrace.etcdArguments" . }}
- --to
- /var/lib/headrace/backup
- --keep
- {{ int .Values.etcd.backup.keep | quote }}
{{- with (fromYaml (include "headrace.backupCertificate" .)) }}
- --encrypt-to
- {{ .file }}
{{- end }}
{{- end -}}

{{/* When a job runs, as cron has it; refused here, since the API server would refuse one object of many. Takes key and text. */}}
{{- define "headrace.schedule" -}}
{{- $here := . -}}
{{- if not (hasPrefix "@" .text) -}}
{{- $allowed := list
  (dict "field" "minute" "value" "[0-5]?[0-9]" "of" "0 to 59")
  (dict "field" "hour" "value" "([01]?[0-9]|2[0-3])" "of" "0 to 23")
  (dict "field" "day of the month" "value" "(0?[1-9]|[12][0-9]|3[01])" "of" "1 to 31")
  (dict "field" "month" "value" "(0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)" "of" "1 to 12")
  (dict "field" "day of the week" "value" "([0-6]|sun|mon|tue|wed|thu|fri|sat)" "of" "0 (Sunday) to 6") -}}
{{- $numbers := dict -}}
{{- range $i, $name := list "sun" "mon" "tue" "wed" "thu" "fri" "sat" }}{{ $_ := set $numbers $name $i }}{{ end -}}
{{- range $i, $name := list "jan" "feb" "mar" "apr" "may" "jun" "jul" "aug" "sep" "oct" "nov" "dec" }}{{ $_ := set $numbers $name (add1 $i) }}{{ end -}}
{{- range $i, $part := splitList " " .text -}}
{{- $is := index $allowed $i -}}
{{- $item := printf "([*?]|%s(-%s)?)(/[1-9][0-9]{0,3})?" $is.value $is.value -}}
{{- if not (regexMatch (printf "^(?i)%s(,%s)*$" $item $item) $part) -}}
{{- fail (printf "%s: %q is no %s; it is %s, * for any, with ranges (1-5), steps (*/10) and lists (1,3)" $here.key $part $is.field $is.of) -}}
{{- end -}}
{{- range regexFindAll "[0-9A-Za-z]+-[0-9A-Za-z]+" $part -1 -}}
{{- $ends := list -}}
{{- range splitList "-" (lower .) -}}
{{- $ends = append $ends (int (ternary (get $numbers .) (float64 .) (hasKey $numbers .))) -}}
{{- end -}}
{{- if gt (first $ends) (last $ends) -}}
{{- fail (printf "%s: the range %s of %s ends before it begins; write it as two, with a comma" $here.key . $is.field) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- .text -}}
{{- end -}}
