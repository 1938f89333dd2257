use kube::core::Status;
use serde_json::json;

use super::*;

fn api(status: serde_json::Value) -> kube::Error {
    kube::Error::Api(Box::new(serde_json::from_value::<Status>(status).unwrap()))
}

#[test]
fn each_status_has_its_cause() {
    let cases = [
        (400, "BadRequest", Cause::Invalid),
        (401, "Unauthorized", Cause::Unauthorized),
        (403, "Forbidden", Cause::Forbidden),
        (404, "NotFound", Cause::NotFound),
        (409, "AlreadyExists", Cause::AlreadyExists),
        (409, "Conflict", Cause::Conflict),
        (422, "Invalid", Cause::Invalid),
        (429, "TooManyRequests", Cause::Unavailable),
        (500, "InternalError", Cause::Unavailable),
        (503, "ServiceUnavailable", Cause::Unavailable),
        (504, "Timeout", Cause::Unavailable),
        (410, "Expired", Cause::Other),
        // A body that is no Status, from a proxy for example.
        (404, "Failed to parse error data", Cause::NotFound),
        (502, "Failed to parse error data", Cause::Unavailable),
    ];
    for (code, reason, expected) in cases {
        let error = api(json!({"code": code, "reason": reason, "message": "words"}));
        assert_eq!(cause(&error), expected, "{code} {reason}");
        assert_eq!(explain(&error).what(), "words");
        assert_eq!(is_retryable(&error), expected == Cause::Unavailable, "{code} {reason}");
    }
    assert!(is_not_found(&api(json!({"code": 404, "reason": "NotFound"}))));
    assert!(is_conflict(&api(json!({"code": 409, "reason": "Conflict"}))));
    assert!(is_already_exists(&api(json!({"code": 409, "reason": "AlreadyExists"}))));
}

#[test]
fn the_fields_of_an_invalid_object_are_listed_once() {
    let error = explain(&api(json!({
        "code": 422, "reason": "Invalid", "message": "DaemonSet \"a\" is invalid: spec.selector: Required value",
        "details": {"causes": [
            {"field": "spec.selector", "message": "Required value"},
            {"field": "spec.template", "message": "Invalid value: 1"},
        ]},
    })));
    assert_eq!(error.why(), ["spec.template: Invalid value: 1"]);
}

#[test]
fn a_status_without_words_gets_some() {
    let error = explain(&api(json!({"code": 401, "reason": "Unauthorized"})));
    assert_eq!(error.what(), "the API server answered 401 Unauthorized");
    assert!(error.hints()[0].contains("--context"), "{:?}", error.hints());
}

#[test]
fn no_explanation_shows_debug_output() {
    let errors = [
        api(json!({"code": 403, "reason": "Forbidden", "message": "no"})),
        kube::Error::Service(Box::new(io::Error::from(io::ErrorKind::ConnectionReset))),
        kube::Error::LinesCodecMaxLineLengthExceeded,
        kube::Error::TlsRequired,
        kube::Error::ReadEvents(io::Error::other("x")),
    ];
    for error in errors {
        let shown = explain(&error).to_string();
        for debug in ["{", "Some(", "Error(", "ApiError", "ServiceError"] {
            assert!(!shown.contains(debug), "{shown}");
        }
    }
}

#[test]
fn the_bottom_of_the_chain_is_found() {
    let wrapped = io::Error::other(rustls::Error::InvalidCertificate(CertificateError::Expired));
    let error = explain(&kube::Error::Service(Box::new(wrapped)));
    assert_eq!(error.cause(), Cause::Certificate);
    let error = explain(&kube::Error::Service(Box::new(io::Error::from(
        io::ErrorKind::TimedOut,
    ))));
    assert_eq!(error.cause(), Cause::TimedOut);
    let error = explain(&kube::Error::Service("some other trouble".into()));
    assert_eq!(
        (error.cause(), error.why()[0].as_str()),
        (Cause::Unreachable, "some other trouble")
    );
}
