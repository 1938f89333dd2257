package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const namespace = "lab"

var (
	things      = schema.GroupVersionResource{Group: "lab.selfhost.test", Version: "v1", Resource: "things"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// makeUser makes a user without any group of administrators, with the rights that the meters need and no others, and the
// objects that they work on. An administrator would not do: system:masters hides the 403s of an apiserver that has not read
// the RBAC rules yet.
func makeUser(flags *flag.FlagSet, args []string) error {
	admin := flags.String("admin", "", "kubeconfig of an administrator")
	out := flags.String("out", "", "kubeconfig to write")
	name := flags.String("name", "prober", "name of the user")
	wait := flags.Duration("timeout", 90*time.Second, "time that all of it may take")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *admin == "" || *out == "" {
		return errors.New("user needs --admin FILE and --out FILE")
	}
	config, err := clientcmd.BuildConfigFromFlags("", *admin)
	if err != nil {
		return err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *wait)
	defer cancel()
	if err := makeRights(ctx, core, *name); err != nil {
		return fmt.Errorf("rights of %s: %w", *name, err)
	}
	if err := makeObjects(ctx, core, dyn); err != nil {
		return fmt.Errorf("objects for the meters: %w", err)
	}
	key, certificate, err := makeCertificate(ctx, core, *name)
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", *name, err)
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"lab": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{*name: {ClientCertificateData: certificate, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{*name: {Cluster: "lab", AuthInfo: *name, Namespace: namespace}},
		CurrentContext: *name,
	}, *out)
}

// there takes an object that exists already for made.
func there[T any](_ T, err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func makeRights(ctx context.Context, core kubernetes.Interface, user string) error {
	create := metav1.CreateOptions{}
	err := there(core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, create))
	rights := map[string][]rbacv1.PolicyRule{
		namespace: {
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch", "patch"}},
			{APIGroups: []string{things.Group}, Resources: []string{things.Resource}, Verbs: []string{"get", "list", "create", "update", "delete"}},
		},
		"default": {
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"endpoints"}, Verbs: []string{"list", "watch"}},
		},
		"kube-system": {{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get"}}},
	}
	for in, rules := range rights {
		meta := metav1.ObjectMeta{Name: "lab-" + user, Namespace: in}
		err = errors.Join(err,
			there(core.RbacV1().Roles(in).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, create)),
			there(core.RbacV1().RoleBindings(in).Create(ctx, &rbacv1.RoleBinding{
				ObjectMeta: meta,
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
			}, create)))
	}
	return err
}

func makeObjects(ctx context.Context, core kubernetes.Interface, dyn dynamic.Interface) error {
	create := metav1.CreateOptions{}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": things.Resource + "." + things.Group},
		"spec": map[string]any{
			"group": things.Group, "scope": "Namespaced",
			"names": map[string]any{"kind": "Thing", "plural": things.Resource, "singular": "thing"},
			"versions": []any{map[string]any{
				"name": things.Version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
	if err := there(dyn.Resource(definitions).Create(ctx, definition, create)); err != nil {
		return err
	}
	for i := -1; i < maxClients; i++ {
		name := "probe"
		if i >= 0 {
			name = fmt.Sprintf("load-%d", i)
		}
		if err := there(core.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, create)); err != nil {
			return err
		}
	}
	// The custom resource is served some time after its definition was made.
	for {
		err := there(dyn.Resource(things).Namespace(namespace).Create(ctx, thing("probe"), create))
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not served in time: %w", things.Resource, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func thing(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": things.GroupVersion().String(), "kind": "Thing", "metadata": map[string]any{"name": name}, "value": "0",
	}}
}

// makeCertificate has the cluster's own CA sign a certificate for the user, the way the documentation tells administrators.
func makeCertificate(ctx context.Context, core kubernetes.Interface, user string) (key, certificate []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: user}}, private)
	if err != nil {
		return nil, nil, err
	}
	requests := core.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "lab-" + user + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, nil, err
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Lab", Message: "the ordinary user of the lab",
	})
	if _, err := requests.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		return nil, nil, err
	}
	for {
		got, err := requests.Get(ctx, csr.Name, metav1.GetOptions{})
		if err == nil && len(got.Status.Certificate) > 0 {
			return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), got.Status.Certificate, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, errors.New("the controller manager has not signed the request in time")
		case <-time.After(100 * time.Millisecond):
		}
	}
}
