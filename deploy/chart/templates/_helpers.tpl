{{/* The Jobs of check.jobNodes share no object with agents: whoever deletes the Jobs keeps the agents. */}}
{{- define "shunt.fullname" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) -}}
{{- $name = printf "%s-%s" $name .Chart.Name -}}
{{- end -}}
{{- if and .Values.check.jobNodes (not (hasSuffix "-check" $name)) -}}
{{- $name = printf "%s-check" ($name | trunc 46 | trimSuffix "-") -}}
{{- end -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "shunt.selectorLabels" -}}
app.kubernetes.io/name: shunt
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "shunt.labels" -}}
{{ include "shunt.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: kube-proxy
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "shunt.serviceAccountName" -}}
{{- $name := ternary "" .Values.serviceAccount.name (gt (len .Values.check.jobNodes) 0) -}}
{{- $name | default (include "shunt.fullname" .) -}}
{{- end -}}

{{- define "shunt.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* The directory of the configuration. kubeadm's configuration names its kubeconfig by this path. */}}
{{- define "shunt.configDirectory" -}}
{{- ternary "/var/lib/kube-proxy" "/etc/shunt" (ne .Values.existingConfigMap "") -}}
{{- end -}}

{{- define "shunt.configFile" -}}
{{- $key := ternary .Values.existingConfigMapKey "config.conf" (ne .Values.existingConfigMap "") -}}
{{- printf "%s/%s" (include "shunt.configDirectory" .) $key -}}
{{- end -}}

{{/* True for an address that only the node itself can reach. */}}
{{- define "shunt.isLoopback" -}}
{{- if or (hasPrefix "127." .) (eq "[::1]" .) (eq "localhost" .) -}}true{{- end -}}
{{- end -}}

{{/* The port and host of a probe. */}}
{{- define "shunt.health" -}}
port: {{ .Values.healthz.port }}
{{- if include "shunt.isLoopback" .Values.healthz.bindAddress }}
host: {{ .Values.healthz.bindAddress | trimAll "[]" | quote }}
{{- end }}
{{- end -}}

{{- define "shunt.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if .Values.apiServer.host }}
{{- include "shunt.checkApiServer" . }}
# Not the ClusterIP of the API server, which works only once shunt has programmed it.
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.apiServer.host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.apiServer.port | quote }}
{{- else if not .Values.existingConfigMap }}
{{- fail "apiServer.host must be given: set it to the address of the API server that the kubelets use, or set existingConfigMap to one with a kubeconfig. The ClusterIP of the Service \"kubernetes\" works only once shunt has programmed it." }}
{{- end }}
{{- end -}}

{{/* Rejects an apiServer.host that cannot work. `helm template` sees no Services, only an installation does. */}}
{{- define "shunt.checkApiServer" -}}
{{- $host := .Values.apiServer.host -}}
{{- if or (regexMatch "^[^:]+:[0-9]+$" $host) (contains "[" $host) -}}
{{- fail (printf "apiServer.host is %q: write the name or address, without port and brackets; set apiServer.port for the port" $host) -}}
{{- end -}}
{{- if regexMatch "^kubernetes(\\.default.*)?$" $host -}}
{{- fail (printf "apiServer.host is %q, a name of the cluster's DNS, which is a Service itself; set it to the address that the kubelets use" $host) -}}
{{- end -}}
{{- range (lookup "v1" "Service" "" "").items -}}
{{- if or (has $host (.spec.clusterIPs | default list)) (eq $host (.spec.clusterIP | default "")) -}}
{{- fail (printf "apiServer.host is %q, the ClusterIP of the Service %s/%s, which works only once shunt has programmed it; set it to the address that the kubelets use" $host .metadata.namespace .metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Rejects a ServiceMonitor for metrics on the loopback address. */}}
{{- define "shunt.checkMetricsAddress" -}}
{{- if include "shunt.isLoopback" .Values.metrics.bindAddress -}}
{{- if .Values.existingConfigMap -}}
{{- fail (printf "monitoring.serviceMonitor.enabled needs metrics that Prometheus can reach; write metricsBindAddress: 0.0.0.0:10249 into the ConfigMap %s, and set metrics.bindAddress=0.0.0.0 here" .Values.existingConfigMap) -}}
{{- end -}}
{{- fail "monitoring.serviceMonitor.enabled needs a metrics.bindAddress that Prometheus can reach, such as \"0.0.0.0\"" -}}
{{- end -}}
{{- if .Values.existingConfigMap -}}
{{- $data := (lookup "v1" "ConfigMap" .Release.Namespace .Values.existingConfigMap).data | default dict -}}
{{- if hasKey $data .Values.existingConfigMapKey -}}
{{- $address := (get $data .Values.existingConfigMapKey | fromYaml).metricsBindAddress | default "127.0.0.1" -}}
{{- if or (hasPrefix "127." $address) (hasPrefix "[::1]" $address) (hasPrefix "localhost" $address) -}}
{{- fail (printf "monitoring.serviceMonitor.enabled needs metrics that Prometheus can reach, but metricsBindAddress in the ConfigMap %s is %s; write 0.0.0.0:10249 there" .Values.existingConfigMap $address) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "shunt.securityContext" -}}
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [NET_ADMIN]
{{- end -}}

{{- define "shunt.volumeMounts" -}}
# The whole directory: files with a subPath do not follow the ConfigMap.
- name: config
  mountPath: {{ include "shunt.configDirectory" . }}
  readOnly: true
{{- if .Values.conntrackMount.enabled }}
# Not below /proc, where a container may mount nothing.
- name: net-sysctls
  mountPath: /host/proc/sys/net
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "shunt.volumes" -}}
{{- if .Values.conntrackMount.enabled -}}
- name: net-sysctls
  hostPath:
    path: /proc/sys/net
    type: Directory
{{ end -}}
- name: config
  {{- if .Values.existingKubeconfigConfigMap }}
  {{- if not .Values.existingConfigMap }}
  {{- fail "existingKubeconfigConfigMap belongs to a configuration in existingConfigMap; without one, set apiServer.host" }}
  {{- end }}
  projected:
    sources:
      - configMap:
          name: {{ .Values.existingConfigMap }}
      - configMap:
          name: {{ .Values.existingKubeconfigConfigMap }}
  {{- else }}
  configMap:
    name: {{ .Values.existingConfigMap | default (include "shunt.fullname" .) }}
  {{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* `shunt check` with the settings and the rights of the agent. */}}
{{- define "shunt.checkContainer" -}}
- name: check
  image: {{ include "shunt.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - check
    - --config={{ include "shunt.configFile" . }}
    - --hostname-override=$(NODE_NAME)
    {{- if .Values.conntrackMount.enabled }}
    - --net-sysctls=/host/proc/sys/net
    {{- end }}
    {{- if ne .Values.metrics.services "off" }}
    - --service-metrics={{ .Values.metrics.services }}
    - --service-metrics-limit={{ int .Values.metrics.servicesLimit }}
    {{- end }}
    {{- with .Values.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    {{- include "shunt.env" . | nindent 4 }}
    {{- with .Values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  securityContext:
    {{- include "shunt.securityContext" . | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  volumeMounts:
    {{- include "shunt.volumeMounts" . | nindent 4 }}
{{- end -}}
