#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shunt::commands::fuzz::objects(bytes));
