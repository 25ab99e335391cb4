//! Arguments of `shunt check`.

use clap::{Arg, Args};

use super::{Format, Run};

/// Arguments of `shunt check`: those of `shunt run`, so that it judges the same settings.
#[derive(Debug, Args)]
pub struct Check {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    pub output: Format,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: Run,
}

/// The flags of `shunt run` that do a task in place of running.
const TASKS: [&str; 4] = ["once", "write_config_to", "cleanup", "init_only"];

/// Hides the flags of tasks from `--help`.
pub(super) fn without_tasks(arg: Arg) -> Arg {
    let is_task = TASKS.contains(&arg.get_id().as_str());
    if is_task { arg.hide(true) } else { arg }
}

impl Check {
    /// Returns the first flag that requests a task of `shunt run`.
    #[must_use]
    pub fn task(&self) -> Option<String> {
        let Run { once, write_config_to, cleanup, init_only, .. } = &self.run;
        let given = [*once, write_config_to.is_some(), *cleanup, *init_only];
        let task = TASKS.iter().zip(given).find(|(_, given)| *given);
        task.map(|(name, _)| format!("--{}", name.replace('_', "-")))
    }
}
