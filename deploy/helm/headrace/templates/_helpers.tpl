{{/* Names, labels, images and addresses. Whoever renders an object takes them from here. */}}

{{- define "headrace.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* What the names of all objects start with; at most 40 characters, so that NAME-coordinator-0 and hashes still fit. */}}
{{- define "headrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "headrace.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
Labels that select pods. They are part of immutable fields and never change between versions of the chart.
Takes root, component for the pods of one workload, and app for those of one app of streams.
*/}}
{{- define "headrace.selector" -}}
app.kubernetes.io/name: {{ include "headrace.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .app }}
headrace.io/app: {{ . }}
{{- end }}
{{- end -}}

{{/* Labels of objects. Pods get only the selector's and the user's: a new chart version alone restarts nothing. */}}
{{- define "headrace.labels" -}}
{{ include "headrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: headrace
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
{{- end -}}

{{/* [registry/]repository/SERVICE:tag[@digest]. Takes root and service. */}}
{{- define "headrace.image" -}}
{{- $image := .root.Values.image -}}
{{- $tag := default .root.Chart.AppVersion $image.tag -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{- with $image.repository }}{{ . }}/{{ end -}}
{{- .service }}:{{ $tag -}}
{{- with get $image.digests .service }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "headrace.etcdImage" -}}
{{- $image := .Values.etcd.image -}}
{{- with $image.registry }}{{ . }}/{{ end -}}{{ $image.repository }}:{{ $image.tag }}{{ with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "headrace.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Text of a number, a boolean, a string or a list of them, without the exponent that large numbers get from YAML. */}}
{{- define "headrace.scalar" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}{{ printf "%.0f" . }}
{{- else if kindIs "slice" . -}}
{{- $texts := list -}}
{{- range . }}{{ $texts = append $texts (include "headrace.scalar" .) }}{{ end -}}
{{- join "," $texts -}}
{{- else -}}{{ toString . }}
{{- end -}}
{{- end -}}

{{/* The number that a quantity is (500m: 0.5, 2e9, 1Gi), to a billionth. The schema has seen that it is one. */}}
{{- define "headrace.number" -}}
{{- $units := dict "n" 1e-9 "u" 1e-6 "m" 0.001 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- printf "%.9f" (mulf (float64 (trimSuffix $unit $text)) (get $units $unit)) -}}
{{- end -}}

{{/* Bytes of a size, to a tenth: Kubernetes writes 1024Gi as 1Ti, and 1.1Gi in thousandths of a byte. */}}
{{- define "headrace.bytes" -}}
{{- printf "%.1f" (float64 (include "headrace.number" .)) -}}
{{- end -}}

{{/* The bits of an IP address as 0s and 1s: 32 of IPv4, 128 of IPv6; empty if it is none. */}}
{{- define "headrace.bits" -}}
{{- $byte := "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])" -}}
{{- $v4 := printf "^(%s\\.){3}%s$" $byte $byte -}}
{{- $tail := regexFind "[0-9.]*$" . -}}
{{- if regexMatch $v4 . -}}
{{- range splitList "." . }}{{ printf "%08b" (int .) }}{{ end -}}
{{- else if and (contains ":" .) (or (not (contains "." .)) (regexMatch $v4 $tail)) -}}
{{- $text := . -}}
{{- if contains "." . -}}
{{- $bytes := splitList "." $tail -}}
{{- $text = printf "%s%02x%02x:%02x%02x" (trimSuffix $tail .) (int (index $bytes 0)) (int (index $bytes 1)) (int (index $bytes 2)) (int (index $bytes 3)) -}}
{{- end -}}
{{- $halves := splitList "::" $text -}}
{{- $groups := list -}}
{{- range $halves }}{{ if . }}{{ $groups = concat $groups (splitList ":" .) }}{{ end }}{{ end -}}
{{- $fit := or (and (eq (len $halves) 1) (eq (len $groups) 8)) (and (eq (len $halves) 2) (lt (len $groups) 8)) -}}
{{- range $groups }}{{ if not (regexMatch "^[0-9A-Fa-f]{1,4}$" .) }}{{ $fit = false }}{{ end }}{{ end -}}
{{- if $fit -}}
{{- range $i, $half := $halves -}}
{{- if $i }}{{ repeat (int (mul 16 (sub 8 (len $groups)))) "0" }}{{ end -}}
{{- if $half }}{{ range splitList ":" $half }}{{ printf "%016b" (int64 (printf "0x%s" .)) }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The bits that all addresses of a network share, after 4 or 6 for its kind. Takes key and network; fails if it is none. */}}
{{- define "headrace.network" -}}
{{- $parts := splitList "/" .network -}}
{{- $bits := include "headrace.bits" (first $parts) -}}
{{- $length := last $parts -}}
{{- if not (and $bits (eq (len $parts) 2) (regexMatch "^(0|[1-9][0-9]{0,2})$" $length) (le (int $length) (len $bits))) -}}
{{- fail (printf "%s: %q is no network; write it as 10.0.0.0/8 or 2001:db8::/32" .key .network) -}}
{{- end -}}
{{- ternary "4" "6" (eq (len $bits) 32) }}{{ trunc (int $length) $bits -}}
{{- end -}}

{{/* Not empty if this is an IP address or a DNS name, which may have upper case. */}}
{{- define "headrace.isHost" -}}
{{- $label := "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?" -}}
{{- if include "headrace.bits" . -}}address
{{- else if and (le (len .) 253) (regexMatch (printf "^%s(\\.%s)*$" $label $label) .) (not (regexMatch "^([0-9.]*\\.)?[0-9]+$" .)) -}}name
{{- end -}}
{{- end -}}

{{/* The port at the end of an address, as a number. */}}
{{- define "headrace.portOf" -}}
{{- regexFind "[0-9]+$" (trimSuffix "/" .) -}}
{{- end -}}

{{/* What follows a pod's name in its address. $(POD_NAMESPACE) is put in by the kubelet. Takes root and component. */}}
{{- define "headrace.domain" -}}
{{ include "headrace.fullname" .root }}-{{ .component }}.$(POD_NAMESPACE).svc.{{ .root.Values.clusterDomain }}
{{- end -}}

{{/*
Addresses of a workload, with commas: its service's, which is known first, and all pods', of which one that hangs can be
left for the next. Takes root, component, replicas and port.
*/}}
{{- define "headrace.addresses" -}}
{{- $name := include "headrace.fullname" .root -}}
{{- $hosts := list (printf "%s-%s-client.$(POD_NAMESPACE).svc.%s:%d" $name .component .root.Values.clusterDomain (int .port)) -}}
{{- range $i := until (int .replicas) -}}
{{- $hosts = append $hosts (printf "%s-%s-%d.%s:%d" $name $.component $i (include "headrace.domain" $) (int $.port)) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- end -}}

{{- define "headrace.controllers" -}}
{{- include "headrace.addresses" (dict "root" . "component" "controller" "replicas" .Values.controller.replicas "port" .Values.listeners.controller.port) -}}
{{- end -}}

{{- define "headrace.etcdEndpoints" -}}
{{- if .Values.etcd.external.endpoints -}}
{{- join "," .Values.etcd.external.endpoints -}}
{{- else -}}
{{- include "headrace.addresses" (dict "root" . "component" "etcd" "replicas" .Values.etcd.replicas "port" 2379) -}}
{{- end -}}
{{- end -}}

{{- define "headrace.bootstrap" -}}
{{ include "headrace.fullname" . }}-bootstrap.$(POD_NAMESPACE).svc.{{ .Values.clusterDomain }}:{{ .Values.listeners.broker.port }}
{{- end -}}

{{/* Name of the Secret with the node token. */}}
{{- define "headrace.nodeToken" -}}
{{- default (printf "%s-node-token" (include "headrace.fullname" .)) .Values.nodeToken.existingSecret -}}
{{- end -}}

{{/*
One key of a Secret, as the file /etc/headrace/NAME/KEY: the volume, and where it is in a container. Both take name, secret
and key. As a directory: a single file would stay what it was when the pod started.
*/}}
{{- define "headrace.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 288  # 0440, of the pod's group
    items:
      - {key: {{ .key }}, path: {{ .key }}}
{{- end -}}

{{- define "headrace.secretMount" -}}
- name: {{ .name }}
  mountPath: /etc/headrace/{{ .name }}
  readOnly: true
{{- end -}}

{{/* Not empty where who may do what is decided, so that clients show who they are. */}}
{{- define "headrace.decides" -}}
{{- if ne .Values.security.mode "open" }}{{ .Values.security.mode }}{{ end -}}
{{- end -}}

{{/* Name of the Secret with the administrator's key. */}}
{{- define "headrace.adminSecret" -}}
{{- default (printf "%s-admin" (include "headrace.fullname" .)) .Values.security.admin.existingSecret -}}
{{- end -}}

{{/*
What a client of ours shows, as headrace.secretVolume takes it: the API key in a Secret of its own, or the administrator's.
Nothing where nobody asks, or it shows a token. Takes root, own (the name of that Secret; may be empty), and account, that
of the pod, if it has one of its own.
*/}}
{{- define "headrace.apiKey" -}}
{{- if and (include "headrace.decides" .root) (not (include "headrace.showsToken" .)) -}}
{name: api-key, key: api-key, secret: {{ default (include "headrace.adminSecret" .root) .own }}}
{{- end -}}
{{- end -}}

{{/* The variable that names it. Takes the same. */}}
{{- define "headrace.apiKeyEnv" -}}
{{- if (include "headrace.apiKey" .) }}
- name: HEADRACE_API_KEY_FILE
  value: /etc/headrace/api-key/api-key
{{- end }}
{{- end -}}

{{/* Whether a client of ours with an account of its own shows the token of it: not empty. Takes the same. */}}
{{- define "headrace.showsToken" -}}
{{- if and .account (not .own) (include "headrace.audience" .root) }}true{{ end -}}
{{- end -}}

{{/* That token as a volume, mounted where clients look; it has another before it ends. */}}
{{- define "headrace.tokenVolume" -}}
- name: token
  projected:
    defaultMode: 288  # 0440, of the pod's group
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ include "headrace.audience" . | replace "$(POD_NAMESPACE)" .Release.Namespace | quote }}
          expirationSeconds: 3600
{{- end -}}

{{- define "headrace.tokenMount" -}}
- name: token
  mountPath: /var/run/secrets/headrace
  readOnly: true
{{- end -}}

{{/* As whom the cluster knows an account of the release. Takes root and account. */}}
{{- define "headrace.principal" -}}
ServiceAccount:{{ .root.Release.Namespace }}/{{ .account }}
{{- end -}}

{{/* An account without any right in Kubernetes: who a pod is to the cluster. Takes root, component, app and account. */}}
{{- define "headrace.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .account }}
  labels:
    {{- include "headrace.labels" (pick . "root" "component" "app") | nindent 4 }}
automountServiceAccountToken: false
{{- end -}}

{{/*
What roles the accounts of the release have in the cluster, as access.bindings and access.rules: those of apps and workers.
*/}}
{{- define "headrace.accountsAccess" -}}
{{- $root := . -}}
{{- $bindings := list -}}
{{- $rules := list -}}
{{- range .Values.streamsApps -}}
{{- $account := include "headrace.workloadName" (dict "root" $root "component" "streams" "app" .name) -}}
{{- if include "headrace.showsToken" (dict "root" $root "own" .apiKeySecret "account" $account) -}}
{{- $principal := include "headrace.principal" (dict "root" $root "account" $account) -}}
{{- $bindings = append $bindings (dict "principal" $principal "role" "streams" "name" (default .name .id)) -}}
{{- range .access }}{{ $bindings = append $bindings (merge (dict "principal" $principal) .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if .Values.connect.enabled -}}
{{- $account := include "headrace.workloadName" (dict "root" . "component" "connect") -}}
{{- if include "headrace.showsToken" (dict "root" . "own" .Values.connect.apiKeySecret "account" $account) -}}
{{- $principal := include "headrace.principal" (dict "root" . "account" $account) -}}
{{- $group := default "connect-cluster" .Values.config.connect.group_id -}}
{{- $bindings = append $bindings (dict "principal" $principal "role" "connect" "name" $group) -}}
{{- $rules = append $rules (dict "principal" $principal "allow" (list "describe") "type" "cluster" "pattern" "kafka-cluster") -}}
{{- range .Values.connect.access }}{{ $bindings = append $bindings (merge (dict "principal" $principal) .) }}{{ end -}}
{{- /* Who writes the topic of configurations makes connectors anyhow; so may the job, and people in a worker's pod. */ -}}
{{- $rules = append $rules (dict "principal" $principal "allow" (list "all") "type" "connector" "pattern" "*") -}}
{{- end -}}
{{- end -}}
{{- dict "bindings" $bindings "rules" $rules | toJson -}}
{{- end -}}

{{/* Where the pod is, for the settings below it. */}}
{{- define "headrace.podEnv" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end -}}

{{- define "headrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "headrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Nothing but the services runs while metadata is being restored. Takes root, component and replicas. */}}
{{- define "headrace.replicas" -}}
{{- if and .root.Values.etcd.restore.enabled (ne .component "etcd") -}}0{{- else -}}{{ int .replicas }}{{- end -}}
{{- end -}}

{{/* A template of external's with what is known of one pod. Takes text, root, component, pod, index. */}}
{{- define "headrace.externalText" -}}
{{- $external := .root.Values.external -}}
{{- tpl .text (dict "Values" .root.Values "Release" .root.Release "Chart" .root.Chart "Template" .root.Template "component" .component "pod" .pod "index" .index "domain" $external.domain) -}}
{{- end -}}

{{/* Address that clients outside use for one pod. Takes root, component, pod, index. */}}
{{- define "headrace.externalHost" -}}
{{- $host := trim (include "headrace.externalText" (merge (dict "text" .root.Values.external.host) .)) -}}
{{- if regexMatch "^[^:]*:[^:]*$" $host -}}
{{- fail (printf "external.host gives %q for pod %s: an address without a port, which external.port or external.nodePorts says" $host .pod) -}}
{{- end -}}
{{- if hasSuffix "." $host -}}
{{- fail (printf "external.host gives the address %q for pod %s: it cannot end with a dot; set external.domain, without one, or external.host" $host .pod) -}}
{{- end -}}
{{- $kind := include "headrace.isHost" $host -}}
{{- if not $kind -}}
{{- fail (printf "external.host gives the address %q for pod %s: set external.domain, or external.host to a template such as \"{{ .pod }}.example.com\"" $host .pod) -}}
{{- end -}}
{{- if and (eq .root.Values.external.type "Gateway") (or (ne $kind "name") (ne $host (lower $host))) -}}
{{- fail (printf "external.host gives %q for pod %s: a Gateway tells routes apart by DNS names in lower case, not by addresses" $host .pod) -}}
{{- end -}}
{{- $host -}}
{{- end -}}

{{/* Port that clients outside use for one pod. Takes root, component, index. */}}
{{- define "headrace.externalPort" -}}
{{- $external := .root.Values.external -}}
{{- if eq $external.type "NodePort" -}}{{ add (int (get $external.nodePorts .component)) .index }}
{{- else if $external.port -}}{{ int $external.port }}
{{- else if eq $external.type "Gateway" -}}{{ ternary 443 80 .root.Values.tls.enabled }}
{{- else -}}{{ include "headrace.externalListener" . }}
{{- end -}}
{{- end -}}

{{/* Port of the listener behind it; the bootstrap address leads to brokers. Takes root and component. */}}
{{- define "headrace.externalListener" -}}
{{- $of := ternary "broker" .component (eq .component "bootstrap") -}}
{{- int (get .root.Values.listeners $of).externalPort -}}
{{- end -}}

{{/* The version of TLSRoute that the cluster has; v1, which came with Gateway API 1.5, where it says nothing. */}}
{{- define "headrace.tlsRouteVersion" -}}
{{- $found := "v1" -}}
{{- range list "v1alpha2" "v1alpha3" "v1" -}}
{{- if $.Capabilities.APIVersions.Has (printf "gateway.networking.k8s.io/%s/TLSRoute" .) }}{{ $found = . }}{{ end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Name of the Secret with the certificate of a role. Takes root and role. */}}
{{- define "headrace.tlsSecret" -}}
{{- default (printf "%s-%s-tls" (include "headrace.fullname" .root) .role) (get .root.Values.tls.existing .role) -}}
{{- end -}}

{{/*
Name of the Secret with what is shown to etcd, by controllers and who makes or restores a backup; empty: it is spoken to
in plain text.
*/}}
{{- define "headrace.etcdClientSecret" -}}
{{- if .Values.etcd.external.endpoints -}}
{{- default "" .Values.etcd.external.tlsSecret -}}
{{- else if .Values.tls.enabled -}}
{{- default (printf "%s-etcd-client-tls" (include "headrace.fullname" .)) .Values.tls.existing.etcdClient -}}
{{- end -}}
{{- end -}}

{{/* volumes and mounts with it, or nothing. */}}
{{- define "headrace.etcdClientVolume" -}}
{{- with (include "headrace.etcdClientSecret" .) }}
volumes:
  - name: etcd-tls
    secret:
      secretName: {{ . }}
      defaultMode: 288  # 0440, of the pod's group
mounts:
  - {name: etcd-tls, mountPath: /etc/headrace/etcd, readOnly: true}
{{- end }}
{{- end -}}

{{/* How a program beside the controllers reaches etcd: a list of arguments. */}}
{{- define "headrace.etcdArguments" -}}
- --etcd
- {{ include "headrace.etcdEndpoints" . }}
{{- if (include "headrace.etcdClientSecret" .) }}
- --etcd-ca
- /etc/headrace/etcd/ca.crt
- --etcd-cert
- /etc/headrace/etcd/tls.crt
- --etcd-key
- /etc/headrace/etcd/tls.key
{{- end }}
{{- end -}}

{{/*
The roles that have a pair of the nodes' CA, with commas: nodes, and the kinds of workers that there are, which no pair of
theirs makes nodes. All workers of streams have the same.
*/}}
{{- define "headrace.nodeRoles" -}}broker,controller,coordinator,admin{{- end -}}

{{- define "headrace.tlsRoles" -}}
{{- include "headrace.nodeRoles" . }}{{ if .Values.connect.enabled }},connect{{ end }}{{ if .Values.streamsApps }},streams{{ end -}}
{{- end -}}

{{/* The keys of tls.existing that are given together, sorted, with commas: an etcd of yours has its own. */}}
{{- define "headrace.existingKeys" -}}
{{- $keys := append (splitList "," (include "headrace.tlsRoles" .)) "ca" -}}
{{- if not .Values.etcd.external.endpoints }}{{ $keys = concat $keys (list "etcd" "etcdClient") }}{{ end -}}
{{- $keys | sortAlpha | join "," -}}
{{- end -}}

{{/* Those that are given, sorted, with commas; but of workers that there are not. */}}
{{- define "headrace.existingGiven" -}}
{{- $given := list -}}
{{- range $key, $name := .Values.tls.existing }}{{ if $name }}{{ $given = append $given $key }}{{ end }}{{ end -}}
{{- if not .Values.connect.enabled }}{{ $given = without $given "connect" }}{{ end -}}
{{- if not .Values.streamsApps }}{{ $given = without $given "streams" }}{{ end -}}
{{- $given | sortAlpha | join "," -}}
{{- end -}}

{{/* Where a worker finds its pair, and what it does with plain text. Takes root and prefix. */}}
{{- define "headrace.pairEnv" -}}
{{- if .root.Values.tls.enabled }}
- name: {{ .prefix }}_CERT
  value: /etc/headrace/pair/tls.crt
- name: {{ .prefix }}_KEY
  value: /etc/headrace/pair/tls.key
- name: {{ .prefix }}_CA
  value: /etc/headrace/pair/ca.crt
- name: {{ .prefix }}_MODE
  value: {{ .root.Values.tls.mode }}
{{- end }}
{{- end -}}

{{/* By which REST of Connect workers is asked; not yet by TLS where some may be without it. */}}
{{- define "headrace.connectScheme" -}}
{{- ternary "https" "http" (and .Values.tls.enabled (ne .Values.tls.mode "allow")) -}}
{{- end -}}

{{/* With TLS: what clients trust, as a volume tls and where it is in a pod. Services have it beside their certificate. */}}
{{- define "headrace.caVolume" -}}
- name: tls
{{- if and (include "headrace.issuer" .) (not .Values.tls.existing.ca) }}
  # Of what cert-manager tells no more: the ConfigMap of it is there later than the first pods.
  secret:
    secretName: {{ include "headrace.tlsSecret" (dict "root" . "role" "broker") }}
    defaultMode: 288  # 0440, of the pod's group
    items:
      - {key: ca.crt, path: ca.crt}
{{- else }}
  configMap:
    name: {{ default (printf "%s-ca" (include "headrace.fullname" .)) .Values.tls.existing.ca }}
{{- end }}
{{- end -}}

{{/* Not empty where cert-manager makes the certificates of nodes. */}}
{{- define "headrace.issuer" -}}
{{- if .Values.tls.enabled }}{{ .Values.tls.certManager.issuerRef.name }}{{ end -}}
{{- end -}}

{{/* What has clients speak TLS; not yet where some nodes may be without it. */}}
{{- define "headrace.caEnv" -}}
{{- if and .Values.tls.enabled (ne .Values.tls.mode "allow") }}
- name: HEADRACE_CA
  value: /etc/headrace/tls/ca.crt
{{- end }}
{{- end -}}

{{/*
Names of a service of the release, from the shortest on. $(POD_NAMESPACE) is put in by the kubelet. Takes root and name (what
follows that of the release).
*/}}
{{- define "headrace.serviceNames" -}}
{{- $name := printf "%s-%s" (include "headrace.fullname" .root) .name -}}
{{- $inside := printf "%s.$(POD_NAMESPACE)" $name -}}
{{- list $name $inside (printf "%s.svc" $inside) (printf "%s.svc.%s" $inside .root.Values.clusterDomain) | join "," -}}
{{- end -}}
