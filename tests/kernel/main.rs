//! What reaches the kernel: the dataplane in a network namespace, with `nft` as the witness.

mod cluster;
mod reconfigured;
mod removal;
mod rendered;
mod sequences;
mod start;
mod transactions;
