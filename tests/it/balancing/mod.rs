//! How the kernel chooses endpoints if a Service or its EndpointSlices ask for more than chance.

mod hash;
mod weights;
