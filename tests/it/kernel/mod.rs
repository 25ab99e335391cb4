//! What reaches the kernel: the dataplane in a network namespace, with `nft` as the witness.

mod cluster;
mod counted;
mod gone;
mod growth;
mod ownership;
mod probe;
mod removal;
mod rendered;
mod sequences;
mod slots;
mod start;
mod transactions;
