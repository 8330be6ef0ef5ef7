{{/*
The one template of all workloads: a StatefulSet and its headless service.

Takes root, component, app (of streams: one of many workloads of this component), pod (the user's settings of this
workload) and of, a dictionary:
  service     whose image runs, as a node of the cluster: it gets the node token, and with TLS a certificate
  image       instead, what runs that is no node
  cluster     true: it is a client of the cluster, and with TLS gets the CA
  command     instead of the image's own
  directory   where it runs, instead of the image's own
  init        init containers
  ports       list of name and port
  env         list of environment variables; settings (a map of setting to value) come after them
  prefix      HEADRACE_X, before the names of settings
  keys        of the values: settings and env, as errors name them
  probes      startup, readiness, liveness
  preStop     a command
  grace       seconds
  claim       size and storageClass of the volume at mountPath
  secrets     files of Secrets, as headrace.secretVolume takes them
  shows       of a client: own and account, as headrace.apiKey takes them; it shows the key or the token to the cluster
  volumes, mounts  beside that volume and /tmp
  account     its ServiceAccount; else it has none of its own. No token is mounted for that
  client      name of the port that has a service address of its own, NAME-client
  annotations of the pods, beside the user's
*/}}
{{- define "headrace.workload" -}}
{{- $root := .root -}}
{{- $component := .component -}}
{{- $here := pick . "root" "component" "app" -}}
{{- $name := include "headrace.workloadName" $here -}}
{{- $keys := default (dict "settings" (printf "config.%s" $component) "env" (printf "extraEnv of %s" $component)) .of.keys -}}
{{- $secrets := default list .of.secrets -}}
{{- $audit := and .of.service (ne .component "broker") (include "headrace.auditDirectory" $root) -}}
{{- $claim := default dict .of.claim -}}
{{- if and $audit $root.Values.audit.storage.size }}{{ $claim = merge (dict "mountPath" "/var/lib/headrace") $root.Values.audit.storage }}{{ end -}}
{{- if and $root.Values.auth.mtls.enabled (has (default "" .of.service) (list "broker" "coordinator" "admin")) }}
{{- $secrets = append $secrets (dict "name" "client-ca" "key" "ca.crt" "secret" $root.Values.auth.mtls.clientCa.existingSecret) }}
{{- end -}}
{{- $shows := merge (dict "root" $root) (default dict .of.shows) -}}
{{- $token := include "headrace.showsToken" $shows -}}
{{- if .of.shows }}{{ with (include "headrace.apiKey" $shows) }}{{ $secrets = append $secrets (fromYaml .) }}{{ end }}{{ end -}}
{{- if .of.service }}{{ $secrets = prepend $secrets (dict "name" "node-token" "key" "node-token" "secret" (include "headrace.nodeToken" $root)) }}{{ end -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "headrace.selector" $here | nindent 4 }}
  ports:
    {{- range .of.ports }}
    - name: {{ .name }}
      port: {{ int .port }}
      targetPort: {{ .name }}
    {{- end }}
{{- with .of.client }}
---
# Known before any pod is: whoever asks for a pod's name too early is told for seconds that there is none.
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}-client
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
spec:
  type: ClusterIP
  publishNotReadyAddresses: true
  selector:
    {{- include "headrace.selector" $here | nindent 4 }}
  ports:
    {{- range $.of.ports }}
    {{- if eq .name $.of.client }}
    - name: {{ .name }}
      port: {{ int .port }}
      targetPort: {{ .name }}
    {{- end }}
    {{- end }}
{{- end }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
spec:
  replicas: {{ include "headrace.replicas" (dict "root" $root "component" .component "replicas" .pod.replicas) }}
  serviceName: {{ $name }}
  podManagementPolicy: Parallel
  revisionHistoryLimit: 5
  updateStrategy:
    type: RollingUpdate
  {{- if $claim }}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: Retain
    whenScaled: Retain
  {{- end }}
  selector:
    matchLabels:
      {{- include "headrace.selector" $here | nindent 6 }}
  template:
    metadata:
      labels:
        {{- merge (fromYaml (include "headrace.selector" $here)) .pod.podLabels | toYaml | nindent 8 }}
      {{- $annotations := merge (default dict .of.annotations) .pod.podAnnotations }}
      {{- with $annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      automountServiceAccountToken: false
      {{- with (ternary .of.account $shows.account (empty $token)) }}
      serviceAccountName: {{ . }}
      {{- end }}
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ int .of.grace }}
      {{- include "headrace.pullSecrets" $root | nindent 6 }}
      {{- with .pod.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .pod.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .pod.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .pod.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "headrace.spread" $here | nindent 6 }}
      securityContext:
        {{- include "headrace.podSecurity" $root | nindent 8 }}
      {{- with .of.init }}
      initContainers:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ if .of.service }}{{ include "headrace.image" (dict "root" $root "service" .of.service) }}{{ else }}{{ .of.image }}{{ end }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          {{- with .of.command }}
          command:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .of.directory }}
          workingDir: {{ . }}
          {{- end }}
          env:
            {{- with .of.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            {{- $prefix := .of.prefix }}
            {{- range $key, $value := .of.settings }}
            - name: {{ printf "%s_%s" $prefix (upper $key) }}
              value: {{ include "headrace.scalar" $value | quote }}
            {{- end }}
            {{- $owners := dict "HEADRACE_CONTROLLER_CLUSTER" "config.controller.cluster, which backups are told too" }}
            {{- range .of.env }}{{ $_ := set $owners .name "the chart, and what depends on it too" }}{{ end }}
            {{- range $key, $value := .of.settings }}
            {{- $_ := set $owners (printf "%s_%s" $prefix (upper $key)) (printf "%s.%s" $keys.settings $key) }}
            {{- end }}
            {{- range .pod.extraEnv }}
            {{- if hasKey $owners .name }}{{ fail (printf "%s: %s is set by %s" $keys.env .name (get $owners .name)) }}{{ end }}
            {{- end }}
            {{- with .pod.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            {{- $taken := dict }}
            {{- range $port := .of.ports }}
            {{- with get $taken (toString (int .port)) }}{{ fail (printf "listeners: %s and %s of %s cannot both have port %d" . $port.name $component (int $port.port)) }}{{ end }}
            {{- $_ := set $taken (toString (int .port)) .name }}
            - name: {{ .name }}
              containerPort: {{ int .port }}
            {{- end }}
          startupProbe:
            {{- include "headrace.probe" (dict "default" .of.probes.startup "over" .pod.startupProbe) | nindent 12 }}
          readinessProbe:
            {{- include "headrace.probe" (dict "default" .of.probes.readiness "over" .pod.readinessProbe) | nindent 12 }}
          livenessProbe:
            {{- include "headrace.probe" (dict "default" .of.probes.liveness "over" .pod.livenessProbe) | nindent 12 }}
          {{- with .of.preStop }}
          lifecycle:
            preStop:
              exec:
                command:
                  {{- toYaml . | nindent 18 }}
          {{- end }}
          resources:
            {{- toYaml (default (get $root.Values.resources .component) .pod.resources) | nindent 12 }}
          securityContext:
            {{- include "headrace.containerSecurity" $root | nindent 12 }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
            {{- range $secrets }}
            {{- include "headrace.secretMount" . | nindent 12 }}
            {{- end }}
            {{- if $token }}
            {{- include "headrace.tokenMount" . | nindent 12 }}
            {{- end }}
            {{- if and $root.Values.tls.enabled (or .of.service .of.cluster) }}
            - name: tls
              mountPath: /etc/headrace/tls
              readOnly: true
            {{- end }}
            {{- if and $root.Values.tls.enabled .of.pair }}
            - name: pair
              mountPath: /etc/headrace/pair
              readOnly: true
            {{- end }}
            {{- with $claim }}
            - name: data
              mountPath: {{ .mountPath }}
            {{- end }}
            {{- if and $audit (not $claim) }}
            - name: audit
              mountPath: /var/lib/headrace
            {{- end }}
            {{- with .of.mounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir:
            sizeLimit: 256Mi
        {{- range $secrets }}
        {{- include "headrace.secretVolume" . | nindent 8 }}
        {{- end }}
        {{- if $token }}
        {{- include "headrace.tokenVolume" $root | nindent 8 }}
        {{- end }}
        {{- if $root.Values.tls.enabled }}
        {{- if .of.service }}
        - name: tls
          secret:
            secretName: {{ include "headrace.tlsSecret" (dict "root" $root "role" .of.service) }}
            defaultMode: 288  # 0440, of the pod's group
        {{- else if .of.cluster }}
        {{- include "headrace.caVolume" $root | nindent 8 }}
        {{- end }}
        {{- with .of.pair }}
        - name: pair
          secret:
            secretName: {{ include "headrace.tlsSecret" (dict "root" $root "role" .) }}
            defaultMode: 288  # 0440, of the pod's group
        {{- end }}
        {{- end }}
        {{- if and $audit (not $claim) }}
        - name: audit
          emptyDir:
            sizeLimit: 512Mi
        {{- end }}
        {{- with .of.volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  {{- with $claim }}
  volumeClaimTemplates:
    - metadata:
        name: data
        labels:
          {{- include "headrace.selector" $here | nindent 10 }}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .storageClass }}
        storageClassName: {{ . | quote }}
        {{- end }}
        resources:
          requests:
            storage: {{ include "headrace.scalar" .size | quote }}
  {{- end }}
{{- if $root.Values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels:
    {{- include "headrace.labels" $here | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "headrace.selector" $here | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Where a service keeps events of the audit that are nowhere else yet; empty: it keeps none. */}}
{{- define "headrace.auditDirectory" -}}
{{- if or (has "topic" .Values.audit.to) (has "file" .Values.audit.to) }}/var/lib/headrace/audit{{ end -}}
{{- end -}}

{{- define "headrace.workloadName" -}}
{{- include "headrace.fullname" .root }}-{{ .component }}{{ with .app }}-{{ . }}{{ end }}
{{- end -}}

{{/* Spread over zones and nodes. Takes root, component and app. */}}
{{- define "headrace.spread" -}}
{{- $here := . -}}
{{- $spread := .root.Values.topologySpread -}}
topologySpreadConstraints:
{{- range $key, $when := dict "topology.kubernetes.io/zone" $spread.zone "kubernetes.io/hostname" $spread.hostname }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $when }}
    labelSelector:
      matchLabels:
        {{- include "headrace.selector" $here | nindent 8 }}
{{- end }}
{{- end -}}

{{/* A probe with the user's changes over it; another kind of check takes the place of ours. Takes default and over. */}}
{{- define "headrace.probe" -}}
{{- $base := deepCopy .default -}}
{{- range $kind := list "grpc" "httpGet" "tcpSocket" "exec" -}}
{{- if hasKey $.over $kind -}}
{{- $_ := unset $base "grpc" -}}{{- $_ := unset $base "httpGet" -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite $base (deepCopy .over) | toYaml -}}
{{- end -}}

{{/*
Probes of our services, on the plaintext health port. live: the process answers, never more than that, or a cluster in
trouble is restarted into a worse one. ready: caught up once since the start.
*/}}
{{- define "headrace.probes" -}}
startup:
  grpc:
    port: {{ int .Values.listeners.health.port }}
    service: live
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 1800
readiness:
  grpc:
    port: {{ int .Values.listeners.health.port }}
    service: ready
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 5
liveness:
  grpc:
    port: {{ int .Values.listeners.health.port }}
    service: live
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* What every service is told. Takes root, component, port (of its gRPC), and external: whether it has such a listener. */}}
{{- define "headrace.serviceEnv" -}}
{{- $prefix := printf "HEADRACE_%s" (upper .component) -}}
{{ include "headrace.podEnv" . }}
- name: {{ $prefix }}_NODE_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
- name: {{ $prefix }}_LISTEN
  value: 0.0.0.0:{{ int .port }}
# Not the pod's name: for as long as DNS answers are cached it leads to the pod before this one, which is gone.
- name: {{ $prefix }}_ADVERTISE_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: {{ $prefix }}_NODE_TOKEN_FILE
  value: /etc/headrace/node-token/node-token
{{- if .root.Values.tls.enabled }}
- name: {{ $prefix }}_TLS_CERT
  value: /etc/headrace/tls/tls.crt
- name: {{ $prefix }}_TLS_KEY
  value: /etc/headrace/tls/tls.key
- name: {{ $prefix }}_TLS_CA
  value: /etc/headrace/tls/ca.crt
- name: {{ $prefix }}_TLS_MODE
  value: {{ .root.Values.tls.mode }}
{{- include "headrace.caEnv" .root }}
{{- end }}
{{- with .root.Values.audit.to }}
- name: {{ $prefix }}_AUDIT_TO
  value: {{ join "," . }}
- name: {{ $prefix }}_AUDIT_ON_FULL
  value: {{ $.root.Values.audit.onFull }}
{{- end }}
{{- with (include "headrace.auditDirectory" .root) }}
- name: {{ $prefix }}_AUDIT_DIR
  value: {{ . }}
{{- end }}
- name: {{ $prefix }}_METRICS_LISTEN
  value: 0.0.0.0:{{ int .root.Values.listeners.metrics.port }}
- name: {{ $prefix }}_HEALTH_LISTEN
  value: 0.0.0.0:{{ int .root.Values.listeners.health.port }}
{{- if ne .component "controller" }}
- name: {{ $prefix }}_CONTROLLERS
  value: {{ include "headrace.controllers" .root }}
- name: HEADRACE_BOOTSTRAP
  value: {{ include "headrace.bootstrap" .root }}
{{- end }}
{{- with (get .root.Values.listeners .component).internalPort }}
- name: {{ $prefix }}_INTERNAL_LISTEN
  value: 0.0.0.0:{{ int . }}
{{- end }}
{{- if and .external .root.Values.auth.mtls.enabled }}
- name: {{ $prefix }}_MTLS_LISTEN
  value: 0.0.0.0:{{ int (get .root.Values.listeners .component).mtlsPort }}
- name: {{ $prefix }}_MTLS_CLIENT_CA
  value: /etc/headrace/client-ca/ca.crt
{{- end }}
{{- if and .external .root.Values.external.enabled }}
- name: {{ $prefix }}_EXTERNAL_LISTEN
  value: 0.0.0.0:{{ int (get .root.Values.listeners .component).externalPort }}
{{- end }}
{{- end -}}

{{/*
The volume with the pods' external addresses, and the command that reads the pod's own. Each pod has another host or port,
which no environment variable of a pod template can say; a file of the pod's name can, and more pods restart nobody.
*/}}
{{- define "headrace.externalVolume" -}}
{{- if .root.Values.external.enabled }}
{{- $variable := printf "HEADRACE_%s_EXTERNAL_ADVERTISE" (upper .component) }}
annotations:
  # Other addresses restart the pods; more pods do not.
  headrace.io/external: {{ pick .root.Values.external "type" "domain" "host" "port" "nodePorts" | toJson | sha256sum | trunc 16 }}
command:
  - sh
  - -euc
  - {{ printf `%s=$$(cat "/etc/headrace/external/$POD_NAME"); export %s; exec python -m headrace_%s` $variable $variable .component | quote }}
volumes:
  - name: external
    configMap:
      name: {{ include "headrace.fullname" .root }}-external
mounts:
  - name: external
    mountPath: /etc/headrace/external
    readOnly: true
{{- end }}
{{- end -}}

{{- define "headrace.servicePorts" -}}
- name: grpc
  port: {{ int .port }}
{{- with (get .root.Values.listeners .component).internalPort }}
- name: internal
  port: {{ int . }}
{{- end }}
{{- if and .external .root.Values.external.enabled }}
- name: external
  port: {{ int (get .root.Values.listeners .component).externalPort }}
{{- end }}
{{- if and .external .root.Values.auth.mtls.enabled }}
- name: mtls
  port: {{ int (get .root.Values.listeners .component).mtlsPort }}
{{- end }}
- name: metrics
  port: {{ int .root.Values.listeners.metrics.port }}
- name: health
  port: {{ int .root.Values.listeners.health.port }}
{{- end -}}
