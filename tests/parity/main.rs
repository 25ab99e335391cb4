//! shunt beside kube-proxy: what becomes of packets, and what both say about themselves.
//!
//! Two equal testbeds, in one the real kube-proxy in its nftables mode, in the other the agent,
//! both with one kube-apiserver. Whatever is written there, every packet must have the same fate in
//! both, but for what [`exceptions`] lists. `KUBEBUILDER_ASSETS` names the folder with
//! kube-apiserver, etcd and kube-proxy.

mod asking;
mod configurations;
mod difference;
mod exceptions;
mod flows;
mod health;
mod planted;
mod sequences;
mod targets;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    shunt_fake_apiserver::run_real(
        &["kube-proxy"],
        &[
            ("planted_cells_are_found", planted::planted_cells_are_found),
            ("cells_without_samples_are_found", planted::cells_without_samples_are_found),
            ("one_different_flow_is_found", planted::one_different_flow_is_found),
        ],
        &[
            ("a_planted_rule_is_found", planted::a_planted_rule_is_found),
            ("a_planted_silence_is_found", planted::a_planted_silence_is_found),
            ("configurations", configurations::configurations),
            ("addresses_of_the_node", configurations::addresses_of_the_node),
            ("health_checks", health::health_checks),
            ("health", health::health),
            ("metrics", health::metrics),
            ("packet_sequences", flows::packet_sequences),
            ("sequences", sequences::sequences),
        ],
    )
}
