//! krew manifests from their templates.

use std::collections::BTreeMap;

use super::Platform;
use crate::error::{Error, Result};

/// The manifest for a version: the template with its words replaced, and without the platforms that have no archive.
///
/// # Errors
/// The version is none, no platform has an archive, or a word is left that nothing replaces.
pub fn manifest(template: &str, version: &str, base_url: &str, sums: &BTreeMap<Platform, String>) -> Result<String> {
    let wrong = |why: String| Error::new("make a krew manifest", why);
    if !is_version(version) {
        return Err(wrong(format!("{version:?} is no version"))
            .hint("write it as v1.2.3, or v1.2.3-rc.1: krew wants a semantic version behind a v"));
    }
    const START: &str = "    - selector:\n";
    let mut parts = template.split(START);
    // the comment at the top is about the template
    let head = parts.next().unwrap_or_default().lines();
    let mut text: String = head
        .skip_while(|line| line.starts_with('#'))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut used = 0;
    for part in parts {
        let found = sums.iter().find(|(platform, _)| part.contains(&word(**platform)));
        if let Some((platform, sum)) = found {
            text.push_str(START);
            text.push_str(&part.replace(&word(*platform), sum));
            used += 1;
        }
    }
    if used == 0 || used != sums.len() {
        return Err(wrong(format!(
            "the template knows {used} of the {} platforms that have archives",
            sums.len()
        )));
    }
    let text = text
        .replace("@VERSION@", version)
        .replace("@BASE_URL@", base_url.trim_end_matches('/'));
    match text.lines().find(|line| line.contains('@')) {
        Some(line) => Err(wrong(format!("nothing replaces the word in {:?}", line.trim()))),
        None => Ok(text),
    }
}

/// What stands for an archive's sum in a template.
fn word(platform: Platform) -> String {
    format!(
        "@SHA256_{}_{}@",
        platform.os.to_uppercase(),
        platform.arch.to_uppercase()
    )
}

/// Whether it is a semantic version behind a `v`.
fn is_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('v') else {
        return false;
    };
    let (numbers, suffix) = rest
        .split_once(['-', '+'])
        .map_or((rest, None), |(numbers, suffix)| (numbers, Some(suffix)));
    let is_number = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
    };
    let numbers: Vec<&str> = numbers.split('.').collect();
    let good = |suffix: &str| {
        suffix
            .split(['.', '+'])
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    };
    numbers.len() == 3 && numbers.into_iter().all(is_number) && suffix.is_none_or(good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::PLATFORMS;

    const TEMPLATE: &str = "# about the template\nkind: Plugin\nspec:\n  version: \"@VERSION@\"\n  platforms:\n    \
        - selector:\n        os: linux\n      uri: @BASE_URL@/@VERSION@/a.tar.gz\n      sha256: \"@SHA256_LINUX_AMD64@\"\n    \
        - selector:\n        os: darwin\n      sha256: \"@SHA256_DARWIN_ARM64@\"\n";

    fn sums(platforms: &[usize]) -> BTreeMap<Platform, String> {
        platforms.iter().map(|n| (PLATFORMS[*n], format!("sum{n}"))).collect()
    }

    #[test]
    fn words_are_replaced_and_platforms_without_archive_left_out() {
        let text = manifest(TEMPLATE, "v1.2.3", "https://a.test/b/", &sums(&[0])).unwrap();
        assert_eq!(
            text,
            "kind: Plugin\nspec:\n  version: \"v1.2.3\"\n  platforms:\n    - selector:\n        os: linux\n      \
             uri: https://a.test/b/v1.2.3/a.tar.gz\n      sha256: \"sum0\"\n"
        );
        let both = manifest(TEMPLATE, "v1.2.3", "https://a.test", &sums(&[0, 3])).unwrap();
        assert!(both.contains("sum0") && both.contains("sum3") && !both.contains('@'));
    }

    #[test]
    fn a_template_and_archives_that_do_not_fit_are_an_error() {
        let cases = [
            (TEMPLATE, sums(&[]), "0 of the 0 platforms"),
            (TEMPLATE, sums(&[0, 1]), "1 of the 2 platforms"),
            (&TEMPLATE.replace("kind", "a: @WHAT@\nkind"), sums(&[0]), "a: @WHAT@"),
        ];
        for (template, sums, why) in cases {
            let error = manifest(template, "v1.2.3", "https://a.test", &sums).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn versions_are_semantic_behind_a_v() {
        for good in ["v0.1.0", "v1.2.3-rc.1", "v1.2.3+build.5", "v10.20.30-a-b"] {
            assert!(is_version(good), "{good}");
        }
        for bad in [
            "1.2.3",
            "v1.2",
            "v1.2.3.4",
            "v01.2.3",
            "v1.2.3-",
            "v1.2.x",
            "v",
            "",
            "v1.2.3-a_b",
            "v1.2.3 ",
        ] {
            assert!(!is_version(bad), "{bad}");
            assert!(manifest(TEMPLATE, bad, "https://a.test", &sums(&[0])).is_err(), "{bad}");
        }
    }
}
