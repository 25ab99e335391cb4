//! kube-proxy's flags as arguments of clap, made from the flag table of the configuration.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{Flag, Flags};

const HONOURED: &str = "Flags of kube-proxy (most have no effect with --config)";
const IDLE: &str = "Flags of kube-proxy, accepted without effect";

/// The flags that set fields of the configuration. With `--config`, most of them have no effect.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) in YAML or JSON.
    pub config: Option<PathBuf>,
    /// The flags on the command line, in their order.
    pub flags: Flags,
}

/// The flags for logging. They take effect with a configuration file, too.
#[derive(Debug, Clone, Default)]
pub struct Logging {
    /// The flags on the command line, in their order.
    pub flags: Flags,
}

impl Settings {
    /// Returns true if the command line has one of these flags.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.config.is_some() || !self.flags.is_empty()
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("A KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) in YAML or JSON");
        with_flags(command.arg(config), |flag| !flag.is_logging)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let config = matches.get_one::<PathBuf>("config").cloned();
        Ok(Settings { config, flags: given(matches, |flag| !flag.is_logging) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Settings::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Logging {
    fn augment_args(command: Command) -> Command {
        with_flags(command, |flag| flag.is_logging)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Logging::augment_args(command)
    }
}

impl FromArgMatches for Logging {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Logging, clap::Error> {
        Ok(Logging { flags: given(matches, |flag| flag.is_logging) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Logging::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flags for logging in a command for interactive use: accepted, but hidden from `--help`.
#[derive(Debug, Clone, Default)]
pub struct HiddenLogging(pub Logging);

impl Args for HiddenLogging {
    fn augment_args(command: Command) -> Command {
        let flags = Flag::all().filter(|flag| flag.is_logging);
        flags.fold(command, |command, flag| command.arg(argument(flag).hide(true)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        HiddenLogging::augment_args(command)
    }
}

impl FromArgMatches for HiddenLogging {
    fn from_arg_matches(matches: &ArgMatches) -> Result<HiddenLogging, clap::Error> {
        Logging::from_arg_matches(matches).map(HiddenLogging)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

fn with_flags(command: Command, wanted: impl Fn(&Flag) -> bool) -> Command {
    Flag::all()
        .filter(|flag| wanted(flag))
        .fold(command, |command, flag| command.arg(argument(flag)))
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
            .hide_short_help(true),
        None if flag.is_own => argument.help(flag.help.trim_end_matches('.')),
        None => argument.help(flag.help.trim_end_matches('.')).help_heading(HONOURED),
    }
}

fn given(matches: &ArgMatches, wanted: impl Fn(&Flag) -> bool) -> Flags {
    let mut flags = Flags::default();
    for flag in Flag::all().filter(|flag| wanted(flag)) {
        let values = matches.get_many::<String>(flag.name);
        values.into_iter().flatten().for_each(|value| flags.push(flag, value));
    }
    flags
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
