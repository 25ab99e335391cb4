//! kube-proxy's flags as arguments of clap, made from the flag table of the configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{Flag, Flags};

const HONOURED: &str = "Flags of kube-proxy (most have no effect with --config)";
const IDLE: &str = "Flags of kube-proxy, accepted without effect";

/// The flags that set fields of the configuration. With `--config`, most of them have no effect.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub struct ConfigurationFlags {
    /// A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) in YAML or JSON.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub given: GivenFlags<false>,
}

impl ConfigurationFlags {
    /// Returns true if the command line has one of these flags.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.config.is_some() || !self.given.flags.is_empty()
    }
}

/// The flags for logging. They take effect with a configuration file, too.
pub type Logging = GivenFlags<true>;

/// The flags for logging, or all others.
#[derive(Debug, Clone, Default)]
pub struct GivenFlags<const LOGGING: bool> {
    /// The flags on the command line, in their order.
    pub flags: Flags,
}

impl<const LOGGING: bool> GivenFlags<LOGGING> {
    fn all() -> impl Iterator<Item = &'static Flag> {
        Flag::all().filter(|flag| flag.is_logging() == LOGGING)
    }
}

impl<const LOGGING: bool> Args for GivenFlags<LOGGING> {
    fn augment_args(command: Command) -> Command {
        let command = Self::all().fold(command, |command, flag| command.arg(argument(flag)));
        if LOGGING {
            command
        } else {
            command.after_help("--help=all also shows kube-proxy's flags")
        }
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const LOGGING: bool> FromArgMatches for GivenFlags<LOGGING> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Flags::default();
        for flag in Self::all() {
            let values = matches.get_many::<String>(flag.name);
            values.into_iter().flatten().for_each(|value| flags.push(flag, value));
        }
        Ok(GivenFlags { flags })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Hides the flags for logging from the `--help` of a command for interactive use.
pub fn without_logging(argument: Arg) -> Arg {
    let is_logging = Flag::named(argument.get_id().as_str()).is_some_and(Flag::is_logging);
    argument.hide(is_logging)
}

fn argument(flag: &'static Flag) -> Arg {
    let check = move |value: &str| flag.check(value).map(|()| value.to_owned());
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .value_parser(ValueParser::new(check));
    let argument = match flag.name.len() {
        1 => argument.short(flag.name.chars().next()),
        _ => argument,
    };
    let argument = if flag.is_switch() {
        argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("BOOL")
    } else {
        // Mainly for negative numbers.
        argument.value_name(flag.value).allow_hyphen_values(true)
    };
    match flag.without_effect_because() {
        Some(reason) => argument
            .help(format!("{} No effect: {reason}", flag.help))
            .help_heading(IDLE)
            .hide_short_help(true)
            .hide_long_help(true),
        None if flag.is_own() => argument.help(flag.help.trim_end_matches('.')),
        None => argument
            .help(flag.help.trim_end_matches('.'))
            .help_heading(HONOURED)
            .hide_short_help(true)
            .hide_long_help(true),
    }
}

/// Returns the words of a command line as kube-proxy reads them: `--cluster_cidr` is
/// `--cluster-cidr`.
pub fn normalized(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut over = false;
    words.map(move |word| {
        over |= word == "--";
        let Some(text) = word.to_str().filter(|text| !over && text.starts_with("--")) else {
            return word;
        };
        let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
        format!("{}{value}", name.replace('_', "-")).into()
    })
}
