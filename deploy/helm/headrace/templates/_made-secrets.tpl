{{- define "headrace.hook" -}}
annotations:
  helm.sh/hook: pre-install,pre-upgrade
  helm.sh/hook-weight: {{ . | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/*
Makes a Secret, once: what is there stays, also when the release goes. All of this are hooks, which Helm deletes when they
are done; the policy too, for the one that denies everything is older than an upgrade. Takes root, component (what the names
of these objects end with), secret (its name) and program, which makes it.
*/}}
{{- define "headrace.madeSecret" -}}
{{- $here := pick . "root" "component" -}}
{{- $name := printf "%s-%s" (include "headrace.fullname" .root) .component -}}
{{- if .root.Values.networkPolicy.enabled }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
  {{- include "headrace.hook" -10 | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "headrace.selector" $here | nindent 6 }}
  policyTypes: [Ingress, Egress]
  egress:
    - {{ include "headrace.apiServerRule" .root | nindent 6 | trim }}
---
{{- end }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
  {{- include "headrace.hook" -10 | nindent 2 }}
automountServiceAccountToken: false
---
# It reads and changes no Secret.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
  {{- include "headrace.hook" -10 | nindent 2 }}
rules:
  - apiGroups: [""]
    resources: [secrets]
    verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
  {{- include "headrace.hook" -10 | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
  {{- include "headrace.hook" -5 | nindent 2 }}
    helm.sh/hook-output-log-policy: hook-failed
spec:
  backoffLimit: 4
  activeDeadlineSeconds: 240
  ttlSecondsAfterFinished: 3600
  template:
    {{- $command := list "python" "-m" .program .secret }}
    {{- range $key, $value := fromYaml (include "headrace.selector" (dict "root" .root)) }}
    {{- $command = concat $command (list "--label" (printf "%s=%s" $key $value)) }}
    {{- end }}
    {{- include "headrace.jobPod" (dict
      "root" .root
      "name" .component
      "component" .component
      "service" "controller"
      "account" $name
      "command" $command
      "mounts" (list (dict "name" "account" "mountPath" "/var/run/secrets/kubernetes.io/serviceaccount" "readOnly" true))
      "volumes" (list (dict "name" "account" "projected" (dict "defaultMode" 288 "sources" (fromYamlArray (include "headrace.accountSources" .root)))))) | nindent 4 }}
{{- end -}}

{{/* What a pod that asks the API server has of its account. */}}
{{- define "headrace.accountSources" -}}
- serviceAccountToken:
    path: token
    expirationSeconds: 600
- configMap:
    name: kube-root-ca.crt
    items:
      - {key: ca.crt, path: ca.crt}
- downwardAPI:
    items:
      - path: namespace
        fieldRef:
          fieldPath: metadata.namespace
{{- end -}}
