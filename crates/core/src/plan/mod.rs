//! Plans the desired state of the kernel from objects: pure functions, no I/O, no clock.
//!
//! Owns: the layout of shunt's tables ([`Set`], [`Chain`], [`Rule`]), the frontends of a Service
//! ([`plan_service`]), and the text of a planned ruleset ([`render`]).
//! The number of rules is constant; a Service is a handful of elements, described by
//! [`Frontend`] values and listed by [`Frontend::elements`].
//!
//! Must not know: netlink, the current state of the kernel, the sources of objects, time.

mod chain_name;
mod conflicts;
mod delta;
mod desired;
mod element;
mod flows;
mod frontend;
mod jhash;
mod layout;
mod loopback;
mod memory;
mod node_context;
mod options;
mod rule;
mod ruleset;
mod service;
mod slots;
mod text;
mod timeouts;

pub use chain_name::ChainName;
pub use conflicts::{Conflict, ConflictReason};
pub use delta::PlanDelta;
pub use desired::Desired;
pub use element::{Element, Key, SetMember, Value};
pub use flows::{Flow, Flows, end_flow, merge_flows};
pub use frontend::{Frontend, FrontendKey, FrontendKind, Outcome, SourceRange};
pub use jhash::hash_index;
pub use layout::{AFFINITY_SIZE, Field, PREPARED_SIZES, Pools, Set, SetValue};
pub use loopback::{LoopbackChanges, LoopbackPort, loopback_address};
pub use memory::recall;
pub use node_context::NodeContext;
pub use options::{DetectLocal, NodePortAddresses, Options};
pub use rule::{BaseHook, Chain, Is, Rule, Statement};
pub use ruleset::{GONE_ENDPOINTS, HASH_SEED, LAYOUT_COMMENT, TABLE, base_chains, on_demand_chain};
pub use service::{HealthCheck, ServicePlan, Unserved, label, plan_service};
pub use slots::{Larger, MAX_ELEMENTS, OVERSIZED};
pub use text::{base_text, element_text, render};
pub use timeouts::TcpTimeouts;
