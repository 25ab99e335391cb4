//! What is done in the machines: how often each kernel is booted, with what, and for which tests.

use super::contents::{OWN_PROGRAM, TEST_PROGRAM};

/// What the test program finds in their environment.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("PATH", "/usr/sbin:/usr/bin"),
    ("HOME", "/"),
    ("RUST_BACKTRACE", "1"),
    // One test at a time: an emulated processor is busy also where a real one would wait, and each
    // change from one process to another costs it what it knows of the addresses of the first. With
    // four at once, the tests with packets took a third longer.
    ("RUST_TEST_THREADS", "1"),
    ("SHUNT_LAB_SLOWNESS", "10"),
    // Of random sequences, as many as there is time for on an emulated processor.
    ("PROPTEST_CASES", "3"),
];

/// One boot of a kernel.
pub(super) struct Boot {
    /// What it is called.
    pub(super) name: &'static str,
    /// For the kernel.
    pub(super) kernel_arguments: &'static str,
    /// Whether it is about the agent's times rather than the kernel.
    pub(super) is_about_the_agent: bool,
    /// What is run, in this order.
    runs: &'static [Run],
}

/// A suite: a module of the test program, or something that the program of `vm-tests` runs.
struct Run {
    name: &'static str,
    /// Names of tests in the module, or parts of names, or options of the test program; without any it
    /// is the whole module.
    tests: &'static [&'static str],
}

/// All boots, the longest first.
///
/// What looks at what the kernel makes of a transaction is run on each kernel. Of the tests
/// with packets those are, which go through another expression, hook or kind of table each: an emulated
/// processor takes twelve times as long. What is left out is more of the same to the kernel, or about
/// the agent alone; it is run on the machine that develops.
pub(super) const BOOTS: [Boot; 5] = [
    Boot {
        name: "packets",
        kernel_arguments: TABLE_SIZE,
        is_about_the_agent: false,
        runs: &[
            Run {
                name: "packets",
                tests: &[
                    "matrix::",
                    "masquerade::",
                    "lifecycle::cleanup_removes_our_rules_and_no_others",
                    "lifecycle::a_killed_agent_leaves_its_rules",
                ],
            },
            Run {
                name: "endpoints",
                tests: &[
                    "affinity::a_client_leaves_a_dead_endpoint_at_once",
                    "affinity::a_session_ends_with_its_time_out",
                    "established::",
                    "flows::a_flow_ends_with_its_service",
                    "flows::a_flow_leaves_an_endpoint_that_is_gone",
                    "gone::",
                ],
            },
            Run {
                name: "balancing",
                tests: &[
                    "hash::a_client_stays_with_its_endpoint_through_every_frontend",
                    "hash::explain_knows_the_endpoint_of_a_client",
                    "weights::a_drained_endpoint_keeps_its_connections_and_gets_no_new_one",
                ],
            },
            Run {
                name: "loopback",
                tests: &["traffic::each_direction_ends_by_itself", "traffic::reset_is_passed_on"],
            },
            Run {
                name: "frontends",
                tests: &[
                    "cluster_ips::",
                    "load_balancers::ranges_change_while_the_agent_runs",
                    "node_ports::an_interface_goes_with_its_addresses",
                    "taken_ports::sockets_of_both_families_and_protocols_are_found",
                    "policies::policies_decide_who_is_reached_and_whose_address_is_seen",
                ],
            },
        ],
    },
    Boot {
        name: "loopback",
        kernel_arguments: TABLE_SIZE,
        is_about_the_agent: true,
        runs: &[
            // Root may open as many files here as it wants to, which few machines for tests permit.
            Run { name: "loopback", tests: &["traffic::ten_thousand_connections_at_once"] },
        ],
    },
    Boot {
        name: "kernel",
        kernel_arguments: TABLE_SIZE,
        is_about_the_agent: false,
        runs: &[
            // First, because it wants to find a machine on which nothing was done.
            Run { name: BARE, tests: &[] },
            // Not those of `shunt render`: what it prints is no matter of the kernel, and nft 1.0.6 puts a
            // conversion into the rule of the source ranges that 6.12.117 rejects. Nor storms:
            // they are about how often the agent tries again, and take it many times as long here.
            Run { name: "kernel", tests: &["--skip=kernel::rendered::", "--skip=kernel::storm::"] },
            // Whether the fake nf_tables are like this kernel, too.
            Run { name: "differential", tests: &[] },
            Run { name: "conntrack", tests: &[] },
        ],
    },
    Boot {
        name: "without-ipv6",
        kernel_arguments: "ipv6.disable=1",
        is_about_the_agent: false,
        runs: &[Run { name: WITHOUT_IPV6, tests: &[] }],
    },
    // Without TABLE_SIZE: what the kernel chooses by itself is what a node falls to.
    Boot {
        name: "after-boot",
        kernel_arguments: "",
        is_about_the_agent: false,
        runs: &[Run { name: AFTER_BOOT, tests: &[] }],
    },
];

/// The modules of the test program, also those of which no machine runs a test.
const MODULES: [&str; 11] = [
    "balancing",
    "conntrack",
    "differential",
    "endpoints",
    "frontends",
    "kernel",
    "loopback",
    "metrics",
    "oncall",
    "packets",
    "reload",
];

/// What the program of `vm-tests` runs: its first argument, too.
const BARE: &str = "bare";
const WITHOUT_IPV6: &str = "without-ipv6";
const AFTER_BOOT: &str = "after-boot";

/// The kernel would make connection tracking's table as small as it finds the machine's memory, too
/// small for the tests that fill it.
const TABLE_SIZE: &str = "nf_conntrack.hashsize=65536";

impl Boot {
    /// The names of what is run.
    pub(super) fn runs(&self) -> Vec<String> {
        self.runs.iter().map(|run| run.name.to_owned()).collect()
    }

    /// What init is to do, read by `vm-tests/src/init.rs`; `agent` is the path of the agent's binary.
    pub(super) fn plan(&self, agent: &str, filter: Option<&str>) -> String {
        let mut plan = format!("env SHUNT {agent}\n");
        for (name, value) in ENVIRONMENT {
            plan += &format!("env {name} {value}\n");
        }
        for run in self.runs {
            plan += format!("run {} {}", run.name, run.command(filter)).trim_end();
            plan.push('\n');
        }
        plan
    }
}

impl Run {
    /// The command line: the tests of this suite that are selected, or those whose names contain
    /// `filter`.
    fn command(&self, filter: Option<&str>) -> String {
        let name = self.name;
        if [BARE, WITHOUT_IPV6, AFTER_BOOT].contains(&name) {
            return format!("{OWN_PROGRAM} {name} {}", filter.unwrap_or_default());
        }
        let mut words = vec![format!("{TEST_PROGRAM} --color=never")];
        if let Some(filter) = filter {
            // Filters of the test program are alternatives, so the other suites are left out instead.
            let others = MODULES.iter().filter(|module| **module != name);
            words.extend(others.map(|module| format!("--skip={module}::")));
            words.push(filter.to_owned());
        } else {
            let is_option = |test: &&str| test.starts_with("--");
            if self.tests.iter().all(is_option) {
                words.push(format!("{name}::"));
            }
            words.extend(self.tests.iter().map(|test| match is_option(test) {
                true => (*test).to_owned(),
                false => format!("{name}::{test}"),
            }));
        }
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_stands_in_for_the_selection() {
        let packets = &BOOTS[0];
        let plan = packets.plan("/a/shunt", None);
        assert!(plan.contains("env SHUNT /a/shunt\n"), "{plan}");
        assert!(plan.contains("packets::matrix:: packets::masquerade::"), "{plan}");
        let filtered = packets.plan("/a/shunt", Some("drift"));
        let run = filtered.lines().find(|line| line.starts_with("run packets ")).unwrap();
        assert!(run.ends_with(" drift") && run.contains("--skip=kernel::"), "{run}");
        assert!(!run.contains("matrix::") && !run.contains("--skip=packets::"), "{run}");
    }

    #[test]
    fn a_suite_without_selection_is_a_whole_module() {
        let plan = BOOTS[2].plan("/a/shunt", None);
        let ends = |end| plan.lines().any(|line| line.ends_with(end));
        assert!(ends(" kernel:: --skip=kernel::rendered:: --skip=kernel::storm::"), "{plan}");
        assert!(ends(" conntrack::") && ends(" bare"), "{plan}");
    }

    #[test]
    fn all_modules_of_the_test_program_are_known() {
        let folder = crate::command::repository().join("tests/it");
        let folders = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
        let folders = folders.filter(|entry| entry.path().is_dir());
        let mut modules: Vec<_> = folders.map(|it| it.file_name().into_string().unwrap()).collect();
        modules.sort();
        assert_eq!(modules, MODULES);
    }

    #[test]
    fn every_selected_test_exists() {
        for run in BOOTS.iter().flat_map(|boot| boot.runs) {
            let named = |test: &&'static str| match test.split_once('=') {
                Some(("--skip", test)) => test.strip_prefix(&format!("{}::", run.name)),
                Some(_) => None,
                None => Some(*test),
            };
            for test in run.tests.iter().filter_map(named) {
                let (module, name) = test.split_once("::").unwrap();
                let file = format!("tests/it/{}/{module}.rs", run.name);
                let text =
                    std::fs::read_to_string(crate::command::repository().join(file)).unwrap();
                assert!(name.is_empty() || text.contains(&format!("fn {name}()")), "{test}");
            }
        }
    }
}
