//! The runtime interface of Kubernetes, as far as a kubelet needs it for one pod: messages of
//! `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto` with the fields that are used, over gRPC.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::header::{CONTENT_TYPE, TE};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

/// How long an answer may take, longer than any timeout of a question.
const PATIENCE: Duration = Duration::from_secs(120);

/// A value of `enum NamespaceMode`.
pub(crate) const MODE_POD: i32 = 0;
/// The same.
pub(crate) const MODE_CONTAINER: i32 = 1;
/// The same.
pub(crate) const MODE_NODE: i32 = 2;
/// A value of `SecurityProfile.ProfileType`.
pub(crate) const RUNTIME_DEFAULT: i32 = 0;
/// The same.
pub(crate) const UNCONFINED: i32 = 1;
/// A value of `enum ContainerState`.
pub(crate) const EXITED: i32 = 2;

/// A number that may be missing.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Int64Value {
    #[prost(int64, tag = "1")]
    pub(crate) value: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecurityProfile {
    #[prost(int32, tag = "1")]
    pub(crate) profile_type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamespaceOption {
    #[prost(int32, tag = "1")]
    pub(crate) network: i32,
    #[prost(int32, tag = "2")]
    pub(crate) pid: i32,
    #[prost(int32, tag = "3")]
    pub(crate) ipc: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DnsConfig {
    #[prost(string, repeated, tag = "1")]
    pub(crate) servers: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxSandboxSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) namespace_options: Option<NamespaceOption>,
    #[prost(message, optional, tag = "9")]
    pub(crate) seccomp: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxPodSandboxConfig {
    #[prost(string, tag = "1")]
    pub(crate) cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<LinuxSandboxSecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "3")]
    pub(crate) log_directory: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) dns_config: Option<DnsConfig>,
    #[prost(message, optional, tag = "8")]
    pub(crate) linux: Option<LinuxPodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
    #[prost(bool, tag = "3")]
    pub(crate) readonly: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Capability {
    #[prost(string, repeated, tag = "1")]
    pub(crate) add_capabilities: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) drop_capabilities: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxContainerSecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) capabilities: Option<Capability>,
    #[prost(bool, tag = "2")]
    pub(crate) privileged: bool,
    #[prost(message, optional, tag = "3")]
    pub(crate) namespace_options: Option<NamespaceOption>,
    #[prost(message, optional, tag = "5")]
    pub(crate) run_as_user: Option<Int64Value>,
    #[prost(message, optional, tag = "12")]
    pub(crate) run_as_group: Option<Int64Value>,
    #[prost(bool, tag = "7")]
    pub(crate) readonly_rootfs: bool,
    #[prost(bool, tag = "11")]
    pub(crate) no_new_privs: bool,
    #[prost(string, repeated, tag = "13")]
    pub(crate) masked_paths: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub(crate) readonly_paths: Vec<String>,
    #[prost(message, optional, tag = "15")]
    pub(crate) seccomp: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxContainerConfig {
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<LinuxContainerSecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) command: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) args: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) mounts: Vec<Mount>,
    #[prost(string, tag = "11")]
    pub(crate) log_path: String,
    #[prost(message, optional, tag = "15")]
    pub(crate) linux: Option<LinuxContainerConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<PodSandboxConfig>,
}

/// A message whose first field is an identifier: the question about a pod or container, and the
/// answer with that of a new one.
#[derive(Clone, PartialEq, Message)]
struct Identifier {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct StopContainerRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(int64, tag = "2")]
    timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ExecSyncRequest {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(string, repeated, tag = "2")]
    cmd: Vec<String>,
    #[prost(int64, tag = "3")]
    timeout: i64,
}

/// What a command in a container printed, and how it ended.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExecSyncResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(crate) exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<ContainerStatus>,
}

/// The state of a container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatus {
    #[prost(int32, tag = "3")]
    pub(crate) state: i32,
    #[prost(int32, tag = "7")]
    pub(crate) exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ImageStatusRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct ImageStatusResponse {
    #[prost(message, optional, tag = "1")]
    image: Option<Identifier>,
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

/// A client of a container runtime.
pub(crate) struct Cri {
    socket: PathBuf,
    runtime: Runtime,
}

impl Cri {
    /// Makes a client of the runtime at this socket.
    pub(crate) fn new(socket: &Path) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket: socket.to_owned(), runtime })
    }

    /// Returns true once the runtime answers.
    pub(crate) fn is_up(&self) -> bool {
        self.call::<_, Nothing>("RuntimeService", "Version", &Nothing {}).is_ok()
    }

    /// Returns true if the runtime has an image of this name.
    pub(crate) fn has_image(&self, name: &str) -> Result<bool> {
        let image = Some(ImageSpec { image: name.to_owned() });
        let question = ImageStatusRequest { image };
        let answer: ImageStatusResponse = self.call("ImageService", "ImageStatus", &question)?;
        Ok(answer.image.is_some())
    }

    /// Starts a pod without containers. Returns its identifier.
    pub(crate) fn run_pod_sandbox(&self, config: &PodSandboxConfig) -> Result<String> {
        let question = RunPodSandboxRequest { config: Some(config.clone()) };
        let answer: Identifier = self.call("RuntimeService", "RunPodSandbox", &question)?;
        Ok(answer.id)
    }

    /// Makes a container in a pod. Returns its identifier.
    pub(crate) fn create_container(
        &self,
        pod: &str,
        config: ContainerConfig,
        sandbox: PodSandboxConfig,
    ) -> Result<String> {
        let question = CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox),
        };
        let answer: Identifier = self.call("RuntimeService", "CreateContainer", &question)?;
        Ok(answer.id)
    }

    /// Starts a container.
    pub(crate) fn start_container(&self, container: &str) -> Result<()> {
        self.about("StartContainer", container)
    }

    /// Ends a container by SIGTERM, and by SIGKILL after so many seconds.
    pub(crate) fn stop_container(&self, container: &str, timeout: i64) -> Result<()> {
        let question = StopContainerRequest { container_id: container.to_owned(), timeout };
        self.call::<_, Nothing>("RuntimeService", "StopContainer", &question).map(drop)
    }

    /// Returns the state of a container.
    pub(crate) fn container_status(&self, container: &str) -> Result<ContainerStatus> {
        let question = Identifier { id: container.to_owned() };
        let answer: ContainerStatusResponse =
            self.call("RuntimeService", "ContainerStatus", &question)?;
        answer.status.context("no status of the container")
    }

    /// Runs a command in a container to its end.
    pub(crate) fn exec_sync(
        &self,
        container: &str,
        words: &[impl AsRef<str>],
    ) -> Result<ExecSyncResponse> {
        let question = ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: words.iter().map(|word| word.as_ref().to_owned()).collect(),
            timeout: 60,
        };
        self.call("RuntimeService", "ExecSync", &question)
    }

    /// Ends what runs in a pod, and removes it.
    pub(crate) fn remove_pod_sandbox(&self, pod: &str) -> Result<()> {
        self.about("StopPodSandbox", pod)?;
        self.about("RemovePodSandbox", pod)
    }

    fn about(&self, method: &str, id: &str) -> Result<()> {
        let question = Identifier { id: id.to_owned() };
        self.call::<_, Nothing>("RuntimeService", method, &question).map(drop)
    }

    /// A gRPC call with one message each way.
    fn call<Q: Message, A: Message + Default>(
        &self,
        service: &str,
        method: &str,
        question: &Q,
    ) -> Result<A> {
        let answer = async {
            let answer = tokio::time::timeout(PATIENCE, self.exchange(service, method, question));
            answer.await.with_context(|| format!("not within {PATIENCE:?}"))?
        };
        let bytes = self.runtime.block_on(answer).with_context(|| format!("CRI: {method}"))?;
        Ok(A::decode(bytes)?)
    }

    async fn exchange(
        &self,
        service: &str,
        method: &str,
        question: &impl Message,
    ) -> Result<Bytes> {
        let stream = UnixStream::connect(&self.socket).await?;
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        // A message follows a byte for "not compressed" and its length.
        let mut body = vec![0];
        body.extend(u32::try_from(question.encoded_len())?.to_be_bytes());
        question.encode(&mut body)?;
        let request =
            hyper::Request::post(format!("http://localhost/runtime.v1.{service}/{method}"))
                .header(CONTENT_TYPE, "application/grpc")
                .header(TE, "trailers")
                .body(Full::<Bytes>::from(body))?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = body.collect().await?;
        // An answer without a message has the status at its head.
        let trailers = body.trailers().unwrap_or(&head.headers);
        let field = |name| trailers.get(name).and_then(|value| value.to_str().ok());
        if field("grpc-status") != Some("0") {
            bail!("{}", field("grpc-message").unwrap_or("no status"));
        }
        let bytes = body.to_bytes();
        ensure!(bytes.len() >= 5, "an answer without a message");
        Ok(bytes.slice(5..))
    }
}
