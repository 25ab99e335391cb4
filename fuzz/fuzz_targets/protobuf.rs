#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shunt::cli::fuzz::protobuf(bytes));
