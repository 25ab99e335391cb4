//! The agent with an API server: what it lists and watches becomes rules, whatever the server does.
//!
//! Each test runs against the stand-in and, where `KUBEBUILDER_ASSETS` names a folder with
//! kube-apiserver and etcd, against these too, except where a server has to do wrong on command.

mod access;
mod encodings;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    shunt_fake_apiserver::run(&[("encodings", encodings::cases()), ("access", access::cases())])
}
