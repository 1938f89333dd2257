use k8s_openapi::api::certificates::v1::{CertificateSigningRequestCondition, CertificateSigningRequestStatus};
use proptest::prelude::*;

use super::*;
use crate::test_support::certificate;

fn request() -> CertificateSigningRequest {
    let pair = new_request("cluster1", "agent1").unwrap();
    request_object("cluster1", &pair.request, None)
}

fn with_conditions(kinds: &[&str], certificate: Option<&[u8]>) -> CertificateSigningRequest {
    let conditions = kinds.iter().map(|kind| CertificateSigningRequestCondition {
        type_: (*kind).to_owned(),
        status: "True".into(),
        reason: Some("Reason".into()),
        message: Some("message".into()),
        ..CertificateSigningRequestCondition::default()
    });
    CertificateSigningRequest {
        status: Some(CertificateSigningRequestStatus {
            conditions: Some(conditions.collect()),
            certificate: certificate.map(|bytes| ByteString(bytes.to_vec())),
        }),
        ..request()
    }
}

#[test]
fn the_object_is_what_the_signer_and_the_hub_ask_for() {
    let object = request();
    assert_eq!(object.metadata.generate_name.as_deref(), Some("cluster1-"));
    assert_eq!(object.metadata.name, None);
    assert_eq!(object.spec.signer_name, "kubernetes.io/kube-apiserver-client");
    assert_eq!(
        object.spec.usages.as_deref().unwrap(),
        ["digital signature", "key encipherment", "client auth"]
    );
    assert_eq!(object.spec.expiration_seconds, None);
    let labels = object.metadata.labels.clone().unwrap();
    assert_eq!(labels.len(), 1);
    assert_eq!(labels["open-cluster-management.io/cluster-name"], "cluster1");
    assert_eq!(recognise(&object).unwrap().agent, "agent1");
    let hour = request_object("c", "x", Some(Duration::from_secs(3600)));
    assert_eq!(hour.spec.expiration_seconds, Some(3600));
}

#[test]
fn the_request_has_two_organizations_one_common_name_and_no_other_names() {
    let cluster = "0f0e0d0c-0b0a-4908-8706-050403020100";
    let pair = new_request(cluster, "bcdfg").unwrap();
    let block = Pem::iter_from_buffer(pair.request.as_bytes()).next().unwrap().unwrap();
    assert_eq!(block.label, "CERTIFICATE REQUEST");
    let (_, parsed) = X509CertificationRequest::from_der(&block.contents).unwrap();
    let info = &parsed.certification_request_info;
    let organizations: Vec<_> = info.subject.iter_organization().map(|o| o.as_str().unwrap()).collect();
    assert_eq!(organizations, [cluster_group(cluster).as_str(), ALL_CLUSTERS_GROUP]);
    let names: Vec<_> = info.subject.iter_common_name().map(|o| o.as_str().unwrap()).collect();
    assert_eq!(names, [agent_user(cluster, "bcdfg")]);
    assert_eq!(names[0].len(), 73, "longer than X.520 allows");
    assert!(
        parsed
            .requested_extensions()
            .is_none_or(|mut extensions| extensions.next().is_none())
    );
    assert!(recognise(&request_object(cluster, &pair.request, None)).is_ok());
}

#[test]
fn states_of_requests() {
    let denied = |text: &str| RequestState::Denied(text.into());
    for (kinds, certificate, state) in [
        (&[][..], None, RequestState::Pending),
        (&["Approved"], None, RequestState::Approved),
        (&["Denied"], None, denied("Reason: message")),
        (&["Approved", "Denied"], None, denied("Reason: message")),
        (&["Approved"], Some(&b"pem"[..]), RequestState::Issued(b"pem".to_vec())),
        (&["Approved"], Some(b""), RequestState::Approved),
        (
            &["Approved", "Failed"],
            None,
            RequestState::Failed("Reason: message".into()),
        ),
    ] {
        assert_eq!(request_state(&with_conditions(kinds, certificate)), state, "{kinds:?}");
    }
    assert_eq!(request_state(&request()), RequestState::Pending);
}

fn pending(name: Option<&str>, key: &str) -> PendingRequest {
    PendingRequest {
        pair: KeyAndRequest {
            key: key.into(),
            request: "request".into(),
        },
        name: name.map(str::to_owned),
        server: "https://hub".into(),
    }
}

#[test]
fn each_situation_has_its_step() {
    let now = Timestamp::now();
    let subject = agent_subject("cluster1", "agent1");
    let user = agent_user("cluster1", "agent1");
    let (good, key) = certificate(&user, "cluster1", -60, 3600);
    let (_, other_key) = certificate(&user, "cluster1", -60, 3600);
    let (early, early_key) = certificate(&user, "cluster1", 120, 3600);
    let (late, late_key) = certificate(&user, "cluster1", -3600, 60);
    let (foreign, foreign_key) = certificate("test", "cluster1", -60, 3600);
    let step = |pending: Option<&PendingRequest>, seen: Option<RequestState>| {
        next_step(pending, "https://hub", &subject, seen.as_ref(), now)
    };
    let issued = |pem: &Vec<u8>| Some(RequestState::Issued(pem.clone()));
    let named = |key: &str| pending(Some("cluster1-abcde"), key);

    assert_eq!(step(None, None), Step::Create);
    assert_eq!(step(Some(&pending(None, &key)), None), Step::FindOrCreate);
    assert!(matches!(step(Some(&named(&key)), None), Step::Forget(_)));
    assert_eq!(
        step(Some(&named(&key)), Some(RequestState::Pending)),
        Step::Wait(RequestState::Pending)
    );
    assert_eq!(
        step(Some(&named(&key)), Some(RequestState::Approved)),
        Step::Wait(RequestState::Approved)
    );
    assert_eq!(
        step(Some(&named(&key)), Some(RequestState::Denied("no".into()))),
        Step::Refused("no".into())
    );
    assert!(matches!(
        step(Some(&named(&key)), Some(RequestState::Failed("no".into()))),
        Step::Forget(_)
    ));
    assert_eq!(step(Some(&named(&key)), issued(&good)), Step::Store(good.clone()));
    assert_eq!(
        step(Some(&named(&early_key)), issued(&early)),
        Step::Store(early.clone()),
        "a slow clock is no reason"
    );
    for (key, pem, why) in [
        (&other_key, &good, "another key"),
        (&late_key, &late, "expired"),
        (&foreign_key, &foreign, "\"test\""),
    ] {
        match step(Some(&named(key)), issued(pem)) {
            Step::Forget(text) => assert!(text.contains(why), "{text}"),
            other => panic!("{other:?}"),
        }
    }
    let elsewhere = next_step(
        Some(&named(&key)),
        "https://other",
        &subject,
        Some(&RequestState::Pending),
        now,
    );
    assert!(
        matches!(elsewhere, Step::Forget(_)),
        "a request that another hub got is none of this one"
    );
}

#[test]
fn requests_that_the_hub_does_not_take_for_those_of_an_agent() {
    let signed = |common_name: &str, organizations: &[&str]| {
        let mut parameters = CertificateParams::default();
        let mut name = DistinguishedName::new();
        for (index, organization) in organizations.iter().enumerate() {
            let kind = if index == 0 {
                DnType::OrganizationName
            } else {
                DnType::CustomDnType(ORGANIZATION.to_vec())
            };
            name.push(kind, *organization);
        }
        name.push(DnType::CommonName, common_name);
        parameters.distinguished_name = name;
        let pem = parameters
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap();
        request_object("cluster1", &pem, None)
    };
    let (user, group, all) = (
        agent_user("cluster1", "a"),
        cluster_group("cluster1"),
        ALL_CLUSTERS_GROUP,
    );
    assert!(recognise(&signed(&user, &[&group, all])).is_ok());
    assert!(
        recognise(&signed(&user, &[&group])).is_ok(),
        "the group of all clusters may be missing"
    );
    for (common_name, organizations) in [
        (user.as_str(), vec![]),
        (&user, vec!["test"]),
        ("", vec![group.as_str(), all]),
        ("system:open-cluster-management:cluster2:a", vec![&group, all]),
        ("system:open-cluster-management:cluster1xyz:a", vec![&group, all]),
        (&user, vec!["system:open-cluster-management:cluster1xyz", all]),
        ("system:open-cluster-management:cluster1", vec![&group, all]),
        ("system:open-cluster-management:cluster1:a:b", vec![&group, all]),
    ] {
        assert!(
            recognise(&signed(common_name, &organizations)).is_err(),
            "{common_name} {organizations:?}"
        );
    }
    let mut object = request();
    object.metadata.labels = None;
    assert!(recognise(&object).is_err());
    let mut object = request();
    object.spec.signer_name = "kubernetes.io/legacy-unknown".into();
    assert!(recognise(&object).is_err());
    let mut object = request();
    object
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert(ADDON_NAME_LABEL.into(), "x".into());
    assert!(recognise(&object).is_err());
    let mut object = request();
    let text = String::from_utf8(object.spec.request.0)
        .unwrap()
        .replace("CERTIFICATE REQUEST", "CERTIFICATE");
    object.spec.request = ByteString(text.into_bytes());
    assert!(recognise(&object).is_err());
}

proptest! {
    #[test]
    fn renewal_is_due_with_20_to_25_percent_left(begin in 0i64..2_000_000_000, life in 600i64..100_000_000, fingerprint: [u8; 32]) {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let validity = Validity { not_before: at(begin), not_after: at(begin + life) };
        let due = renew_at(validity, &fingerprint);
        let left = validity.not_after.duration_since(due).as_secs_f64() / life as f64;
        prop_assert!((0.199_999..=0.250_001).contains(&left), "{}", left);
        prop_assert_eq!(due, renew_at(validity, &fingerprint));
    }

    #[test]
    fn nothing_in_a_request_makes_it_panic(bytes: Vec<u8>, label in "\\PC*") {
        let mut object = request_object(&label, "", None);
        object.spec.request = ByteString(bytes);
        let _ = recognise(&object);
        let _ = request_state(&object);
    }
}
