{{/*
The pod of a job of ours. Takes root, component (job or backup), service (whose image), command, env, mounts, volumes.
*/}}
{{- define "headrace.jobPod" -}}
metadata:
  labels:
    {{- include "headrace.selector" (dict "root" .root "component" .component) | nindent 4 }}
spec:
  {{- include "headrace.jobSpec" . | nindent 2 }}
{{- end -}}

{{- define "headrace.jobSpec" -}}
restartPolicy: Never
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
      {{- if eq .component "job" }}
      - name: HEADRACE_BOOTSTRAP
        value: {{ include "headrace.bootstrap" .root }}
      {{- end }}
    resources:
      {{- toYaml .root.Values.resources.jobs | nindent 6 }}
    securityContext:
      {{- include "headrace.containerSecurity" .root | nindent 6 }}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
      {{- with .mounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 64Mi
  {{- with .volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The backup or restore of metadata: a job's pod with the volume for backups. Takes root, name and command. */}}
{{- define "headrace.backupPod" -}}
{{- $name := printf "%s-etcd-backup" (include "headrace.fullname" .root) -}}
{{- include "headrace.jobPod" (merge (dict
  "component" "backup"
  "service" "controller"
  "mounts" (list (dict "name" "backup" "mountPath" "/var/lib/headrace"))
  "volumes" (list (dict "name" "backup" "persistentVolumeClaim" (dict "claimName" $name)))) .) -}}
{{- end -}}

{{- define "headrace.backupCommand" -}}
- python
- -m
- headrace_controller.backup
- --cluster
- {{ default "headrace" .Values.config.controller.cluster }}
- --etcd
- {{ include "headrace.etcdEndpoints" . }}
- --to
- /var/lib/headrace/backup
- --keep
- {{ int .Values.etcd.backup.keep | quote }}
{{- end -}}
