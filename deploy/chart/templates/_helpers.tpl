{{- define "shunt.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
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
{{- .Values.serviceAccount.name | default (include "shunt.fullname" .) -}}
{{- end -}}

{{- define "shunt.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Where the configuration is mounted. kubeadm's names the kubeconfig beside it by this path. */}}
{{- define "shunt.configDirectory" -}}
{{- ternary "/var/lib/kube-proxy" "/etc/shunt" (ne .Values.existingConfigMap "") -}}
{{- end -}}

{{- define "shunt.configFile" -}}
{{- $key := ternary .Values.existingConfigMapKey "config.conf" (ne .Values.existingConfigMap "") -}}
{{- printf "%s/%s" (include "shunt.configDirectory" .) $key -}}
{{- end -}}

{{/* True for an address that is reached from the node itself only. */}}
{{- define "shunt.isLoopback" -}}
{{- if or (hasPrefix "127." .) (eq "[::1]" .) (eq "localhost" .) -}}true{{- end -}}
{{- end -}}

{{/* Where a probe finds the agent: behind the path. */}}
{{- define "shunt.health" -}}
port: healthz
{{- if include "shunt.isLoopback" .Values.healthz.bindAddress }}
host: {{ .Values.healthz.bindAddress | trimAll "[]" | quote }}
{{- end }}
{{- end -}}
