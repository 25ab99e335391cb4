//! What a person on call asks the node: the commands beside the running agent, with real packets.

mod services;
mod top;
