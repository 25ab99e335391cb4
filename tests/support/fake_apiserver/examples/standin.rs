//! The stand-in as a program, for those who cannot link it.
//!
//! It prints the path of a kubeconfig, then carries out each line of its standard input and answers it
//! with a line: `ok`, or what went wrong. A line is `put` with a JSON string of YAML documents, or
//! `break-watches`. It ends with its standard input.
#![allow(clippy::print_stdout, reason = "what it prints are its answers")]

use std::io::{BufRead, stdin};

use anyhow::{Result, bail};
use shunt_fake_apiserver::{Kind, Kubeconfig, Standin, TOKEN};

fn main() -> Result<()> {
    let api = Standin::start_plain()?;
    let kubeconfig = Kubeconfig::new(&format!("http://{}", api.address()))?.token(TOKEN)?;
    println!("{}", kubeconfig.path().display());
    for line in stdin().lock().lines() {
        match carry_out(&api, &line?) {
            Ok(()) => println!("ok"),
            Err(error) => println!("{}", format!("{error:#}").replace('\n', " ")),
        }
    }
    Ok(())
}

fn carry_out(api: &Standin, line: &str) -> Result<()> {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("put", manifests) => api.put(&serde_json::from_str::<String>(manifests)?),
        ("break-watches", "") => {
            [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr]
                .into_iter()
                .try_for_each(|kind| api.break_watches(kind))
        }
        _ => bail!("unknown: {line:?}"),
    }
}
