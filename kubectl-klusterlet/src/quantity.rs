//! Sums of Kubernetes quantities (`k8s.io/apimachinery/pkg/api/resource`), exact, and written in its canonical form.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Units of 10⁻⁹, the finest that Kubernetes knows.
const NANO: i128 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

/// An exact amount, and how it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    nanos: i128,
    format: Format,
}

const DECIMAL: [(&str, i128); 9] = [
    ("E", NANO * 1_000_000_000_000_000_000),
    ("P", NANO * 1_000_000_000_000_000),
    ("T", NANO * 1_000_000_000_000),
    ("G", NANO * 1_000_000_000),
    ("M", NANO * 1_000_000),
    ("k", NANO * 1_000),
    ("", NANO),
    ("m", NANO / 1_000),
    ("u", NANO / 1_000_000),
];
const BINARY: [(&str, i128); 6] = [
    ("Ei", NANO << 60),
    ("Pi", NANO << 50),
    ("Ti", NANO << 40),
    ("Gi", NANO << 30),
    ("Mi", NANO << 20),
    ("Ki", NANO << 10),
];

impl Amount {
    /// Reads `110`, `3920m`, `16Gi`, `1e3`; `None` where it is no quantity.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let end = text
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (unit, format) = match suffix {
            "n" => (1, Format::Decimal),
            _ => match (
                DECIMAL.iter().find(|(name, _)| *name == suffix),
                BINARY.iter().find(|(name, _)| *name == suffix),
            ) {
                (Some((_, unit)), _) => (*unit, Format::Decimal),
                (_, Some((_, unit))) => (*unit, Format::Binary),
                _ => {
                    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
                    let power = 10i128.checked_pow(exponent.unsigned_abs().min(30))?;
                    let unit = if exponent < 0 {
                        NANO / power.max(1)
                    } else {
                        NANO.checked_mul(power)?
                    };
                    (unit, Format::Exponent)
                }
            },
        };
        let (negative, digits) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number.strip_prefix('+').unwrap_or(number)),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if (whole.is_empty() && fraction.is_empty())
            || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit())
        {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let mut nanos = whole.checked_mul(unit)?;
        if !fraction.is_empty() {
            let scale = 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            let part = fraction.parse::<i128>().ok()?.checked_mul(unit)?;
            // What is finer than 10⁻⁹ is rounded up, as Kubernetes does.
            nanos = nanos.checked_add((part + scale - 1) / scale)?;
        }
        Some(Self {
            nanos: if negative { -nanos } else { nanos },
            format,
        })
    }
}

/// Canonical: no fraction, and the largest unit that needs none.
impl std::fmt::Display for Amount {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nanos == 0 {
            return formatter.write_str("0");
        }
        let whole = |units: &[(&'static str, i128)]| {
            units
                .iter()
                .find(|(_, unit)| self.nanos % unit == 0)
                .map(|(name, unit)| (self.nanos / unit, *name))
        };
        let (number, suffix) = match self.format {
            // Below 1024 binary units are of no use: Kubernetes writes the plain number.
            Format::Binary if self.nanos.abs() >= NANO << 10 => whole(&BINARY).or_else(|| whole(&DECIMAL[6..])),
            Format::Binary | Format::Decimal => whole(&DECIMAL),
            Format::Exponent => {
                let mut rest = self.nanos;
                let mut exponent = -9;
                while rest % 1000 == 0 {
                    rest /= 1000;
                    exponent += 3;
                }
                return if exponent == 0 {
                    write!(formatter, "{rest}")
                } else {
                    write!(formatter, "{rest}e{exponent}")
                };
            }
        }
        .unwrap_or((self.nanos, "n"));
        write!(formatter, "{number}{suffix}")
    }
}

/// Adds `more` to `sums`, key by key. The form of the first amount of a key stays. What is no quantity is left out.
pub fn add(sums: &mut BTreeMap<String, Amount>, more: &BTreeMap<String, Quantity>) {
    for (name, quantity) in more {
        let Some(amount) = Amount::parse(&quantity.0) else {
            continue;
        };
        match sums.get_mut(name) {
            None => {
                sums.insert(name.clone(), amount);
            }
            Some(sum) => {
                // As for Kubernetes, the form of a zero gives way.
                if sum.nanos == 0 {
                    sum.format = amount.format;
                }
                sum.nanos = sum.nanos.saturating_add(amount.nanos);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(texts: &[&str]) -> String {
        let mut sums = BTreeMap::new();
        for text in texts {
            add(
                &mut sums,
                &BTreeMap::from([("x".to_owned(), Quantity((*text).to_owned()))]),
            );
        }
        sums.get("x").map_or_else(String::new, Amount::to_string)
    }

    #[test]
    fn sums_are_exact_and_canonical() {
        for (texts, expected) in [
            (&["8", "8"][..], "16"),
            (&["3920m", "80m"], "4"),
            (&["3920m", "90m"], "4010m"),
            (&["16393244Ki", "16393244Ki"], "32786488Ki"),
            (&["16Gi", "16Gi"], "32Gi"),
            (&["1Gi", "1"], "1073741825"),
            (&["110", "110"], "220"),
            (&["500", "500"], "1k"),
            (&["0", "0"], "0"),
            (&["0", "2Gi"], "2Gi"),
            (&["1e3", "1e3"], "2e3"),
            (&["0.5", "0.5"], "1"),
            (&["1.5Gi"], "1536Mi"),
            (&["100n", "900n"], "1u"),
            (&["1.0000000001"], "1000000001n"),
            (&["512Ki", "bad", "512Ki"], "1Mi"),
            (&["100", "24Ki"], "24676"),
            (&["-1", "3"], "2"),
            (&["9E", "9E"], "18E"),
            (&["bad"], ""),
        ] {
            assert_eq!(sum(texts), expected, "{texts:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(number in 0i64..1_000_000_000_000, suffix in prop::sample::select(vec!["", "m", "k", "M", "Ki", "Mi", "Gi", "n", "u", "e3", "E2"])) {
            if let Some(amount) = Amount::parse(&format!("{number}{suffix}")) {
                let again = Amount::parse(&amount.to_string()).unwrap();
                prop_assert_eq!(again.nanos, amount.nanos);
            } else {
                prop_assert!(false);
            }
        }

        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,24}") {
            if let Some(amount) = Amount::parse(&text) {
                let _ = amount.to_string();
            }
        }
    }
}
