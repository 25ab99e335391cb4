//! No error about a kubeconfig quotes what is in it.

use std::fs;

use crate::source::kubernetes::{Access, Connection};

const SECRET: &str = "c2VjcmV0LXRva2Vu";

/// A kubeconfig with all fields. Lines with `?` are there only while their own value is replaced.
const KUBECONFIG: &str = "\
 apiVersion: v1
 kind: Config
 current-context: x
?preferences: {}
?extensions: []
 clusters:
   - name: x
     cluster:
       server: https://127.0.0.1:1
?      insecure-skip-tls-verify: false
       certificate-authority: ca.crt
?      certificate-authority-data: x
?      proxy-url: x
?      tls-server-name: x
?      extensions: x
 contexts:
   - name: x
     context:
       cluster: x
       user: x
?      namespace: x
 users:
   - name: x
     user:
       token: c2VjcmV0LXRva2Vu
?      username: x
?      password: x
?      tokenFile: x
?      client-certificate: x
?      client-certificate-data: x
?      client-key: x
?      client-key-data: x
?      as: x
?      as-uid: x
?      as-groups: x
?      as-user-extra: x
?      auth-provider: x
?      exec: x
";

/// What stands in a field instead of what belongs there: each makes another error.
const VALUES: [&str; 15] = [
    "SECRET",
    "{SECRET: SECRET}",
    "{SECRET: 1}",
    "{name: aws, command: SECRET, env: [{name: SECRET, value: SECRET}], config: {id-token: SECRET}}",
    "[SECRET, {SECRET: SECRET}]",
    "\"SECRET\\0\\n\"",
    "\"-----BEGIN SECRET-----\\nSECRET\\n-----END x-----\"",
    "https://SECRET:SECRET@127.0.0.1:1/SECRET?token=SECRET",
    "gopher://SECRET@SECRET",
    // None of these is YAML.
    "*SECRET",
    "!SECRET!x y",
    "\"SECRET",
    "SECRET: SECRET: SECRET",
    "|9xSECRET",
    "{SECRET",
];

/// A folder with the file that the kubeconfig names.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let authority = shunt_fake_apiserver::Authority::new().unwrap();
    fs::write(folder.path().join("ca.crt"), authority.pem()).unwrap();
    folder
}

/// The kubeconfigs that have this value in one of the fields, with that field's line.
fn kubeconfigs(value: &str) -> Vec<(String, String)> {
    let depth = |line: &str| line[1..].len() - line[1..].trim_start_matches([' ', '-']).len();
    let lines: Vec<&str> = KUBECONFIG.lines().collect();
    let with = |chosen: usize| {
        let mut text = String::new();
        let mut inside = false;
        for (number, line) in lines.iter().enumerate() {
            inside &= depth(line) > depth(lines[chosen]);
            if number == chosen {
                let (name, _) = line[1..].split_once(':').unwrap();
                text.push_str(&format!("{name}: {value}\n"));
                inside = true;
            } else if !inside && !line.starts_with('?') {
                text.push_str(&format!("{}\n", &line[1..]));
            }
        }
        (lines[chosen][1..].to_owned(), text)
    };
    (0..lines.len()).map(with).collect()
}

#[tokio::test]
async fn no_error_about_a_kubeconfig_quotes_it() {
    let folder = folder();
    let path = folder.path().join("kubeconfig");
    let access = Access { kubeconfig: Some(path.clone()), ..Access::default() };
    let mut errors = 0;
    for value in VALUES {
        let value = value.replace("SECRET", SECRET);
        for (field, text) in kubeconfigs(&value) {
            fs::write(&path, &text).unwrap();
            let checked = access.check();
            let opened =
                || Connection::open(access.clone(), std::sync::Arc::new(|_, _, _, _| ())).map(drop);
            if let Err(error) = checked.and_then(|()| opened()) {
                let (shown, debug) = (error.to_string(), format!("{error:?}"));
                assert!(!shown.contains(SECRET), "{field} = {value}: {shown}");
                assert!(!debug.contains(SECRET), "{field} = {value}: {debug}");
                assert!(shown.contains(path.to_str().unwrap()), "{field} = {value}: {shown}");
                errors += 1;
            }
        }
    }
    assert!(errors > 200, "{errors} errors");
}

#[tokio::test]
async fn no_error_about_a_master_quotes_it() {
    let folder = folder();
    let path = folder.path().join("kubeconfig");
    fs::write(
        &path,
        KUBECONFIG
            .lines()
            .filter(|line| !line.starts_with('?'))
            .fold(String::new(), |text, line| text + &line[1..] + "\n"),
    )
    .unwrap();
    for kubeconfig in [None, Some(path)] {
        for url in ["https://me:SECRET@server", "SECRET@", "ftp://SECRET", "https://SECRET@/ x"] {
            let master = Some(url.replace("SECRET", SECRET));
            let access = Access { kubeconfig: kubeconfig.clone(), master, ..Access::default() };
            let error = access.check().unwrap_err();
            assert!(!format!("{error} {error:?}").contains(SECRET), "{url}: {error:?}");
        }
    }
}

#[test]
fn errors_about_a_kubeconfig_say_where_and_what() {
    let folder = folder();
    let path = folder.path().join("kubeconfig");
    let access = Access { kubeconfig: Some(path.clone()), ..Access::default() };
    for (field, value, words) in [
        ("token", "12", "kubeconfig:17: users[0].user.token: must be text, not a number"),
        ("tokenFile", "/nowhere/token", "cannot read the file /nowhere/token: No such file"),
        (
            "tokenFile",
            "nowhere",
            ":17: users[0].user.tokenFile: cannot read the file that this field",
        ),
        ("client-key-data", "'*'", ":18: users[0].user.client-key-data: is not valid base64"),
        ("client-certificate-data", "eA==", "users[0].user.client-key: missing"),
        (
            "certificate-authority-data",
            "eA==",
            "certificate-authority-data: holds no CA certificate in PEM",
        ),
        (
            "certificate-authority",
            "kubeconfig",
            "cluster.certificate-authority: holds no CA certificate",
        ),
        ("exec", "{}", "users[0].user.exec: shunt starts no programs"),
        ("proxy-url", "/", "clusters[0].cluster.proxy-url: is not a URL such as http://proxy:3128"),
        (
            "insecure-skip-tls-verify",
            "true",
            "cluster.insecure-skip-tls-verify: set together with a certificate authority",
        ),
        ("cluster", "other", ":12: contexts[0].context.cluster: names a cluster that is not in"),
        ("current-context", "z", ":3: current-context: names a context that is not in contexts"),
        ("kind", "Pod", ":2: kind: must be Config"),
        ("username", "x", "users[0].user.username: set together with a token"),
    ] {
        let (_, text) = kubeconfigs(value)
            .into_iter()
            .rfind(|(line, _)| line.trim().starts_with(&format!("{field}:")))
            .unwrap();
        // A token in the file itself would do instead.
        let inline = format!("token: {SECRET}");
        let keep = |line: &&str| field != "tokenFile" || line.trim() != inline;
        let text: Vec<&str> = text.lines().filter(keep).collect();
        fs::write(&path, text.join("\n")).unwrap();
        let error = access.check().unwrap_err().to_string();
        assert!(error.contains(words), "{field} = {value}: {error}");
    }
}
