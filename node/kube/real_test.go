package kube

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gaggle-cni/gaggle/node"
)

// These tests run against a real API server with etcd, with the rights that deploy/gaggle.yaml gives and no others. The binary
// is that of make kube, in $GAGGLE_KUBE_CACHE, by default in the user's cache directory under gaggle-kube; etcd is the distribution's.
// Without the two they are skipped, unless GAGGLE_KUBE=1.

func kubeBinaries(t *testing.T) (apiserver, etcd string) {
	t.Helper()
	cache := os.Getenv("GAGGLE_KUBE_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			dir = "/none"
		}
		cache = filepath.Join(dir, "gaggle-kube")
	}
	found, err := filepath.Glob(filepath.Join(cache, "kubernetes-*", "bin", "kube-apiserver"))
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no kube-apiserver in %s: make kube builds it", cache)
	} else if err == nil {
		apiserver = found[len(found)-1]
	}
	etcd, etcdErr := exec.LookPath("etcd")
	if err = errors.Join(err, etcdErr); err != nil {
		if os.Getenv("GAGGLE_KUBE") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return apiserver, etcd
}

// A realServer is an API server with etcd behind it.
type realServer struct {
	url, dir string
	client   *http.Client
	stop     func()
}

const (
	adminToken = "admin-token"
	ownToken   = "own-token"
)

func startReal(t *testing.T) *realServer {
	apiserver, etcd := kubeBinaries(t)
	dir := t.TempDir()
	ports := freePorts(t, 3)
	s := &realServer{url: fmt.Sprintf("https://127.0.0.1:%d", ports[2]), dir: dir, client: &http.Client{
		Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keyFile := write("sa.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	tokens := write("tokens", []byte(adminToken+",admin,1,system:masters\n"+
		ownToken+`,system:serviceaccount:gaggle-system:gaggle,2,"system:serviceaccounts,system:authenticated"`+"\n"))
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	process(t, etcd, "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
	s.stop = process(t, apiserver, "--etcd-servers", client, "--secure-port", fmt.Sprint(ports[2]), "--bind-address", "127.0.0.1",
		"--cert-dir", filepath.Join(dir, "certs"), "--token-auth-file", tokens, "--authorization-mode", "RBAC",
		"--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile, "--service-account-issuer", "https://test",
		"--service-cluster-ip-range", "10.96.0.0/16", "--disable-admission-plugins", "ServiceAccount")
	eventually60(t, "the API server", func() bool { code, _ := s.do(t, "GET", "/readyz", "", nil); return code == http.StatusOK })
	return s
}

func eventually60(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for end := time.After(time.Minute); !holds(); {
		select {
		case <-ticker.C:
		case <-end:
			t.Fatalf("never: %s", what)
		}
	}
}

func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// process runs a program until the test ends, and shows its last words if the test fails.
func process(t *testing.T, program string, args ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, args...)
	log := new(safeBuffer)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() { cancel(); _ = cmd.Wait() }
	t.Cleanup(func() {
		stop()
		if text := log.String(); t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), text[max(0, len(text)-2000):])
		}
	})
	return stop
}

// do makes a request as the administrator.
func (s *realServer) do(t *testing.T, method, path, contentType string, body []byte) (code int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, s.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data)
}

// try posts an object that must be accepted, or refused for a reason.
func (s *realServer) try(t *testing.T, path, object, refusal string) {
	t.Helper()
	code, answer := s.do(t, "POST", path, "application/yaml", []byte(object))
	if refusal == "" && code != http.StatusCreated || refusal != "" && (code != http.StatusUnprocessableEntity || !strings.Contains(answer, refusal)) {
		t.Errorf("POST %s = %d %s\nwant %q", path, code, answer, refusal)
	}
}

func (s *realServer) patch(t *testing.T, path, patch string) {
	t.Helper()
	if code, answer := s.do(t, "PATCH", path, "application/merge-patch+json", []byte(patch)); code != http.StatusOK {
		t.Errorf("PATCH %s = %d %s", path, code, answer)
	}
}

// deploy applies what deploy/gaggle.yaml has of the wanted kinds.
func (s *realServer) deploy(t *testing.T, kinds ...string) {
	t.Helper()
	data, err := os.ReadFile("../../deploy/gaggle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{
		"CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "Namespace": "/api/v1/namespaces",
		"ServiceAccount": "/api/v1/namespaces/gaggle-system/serviceaccounts", "DaemonSet": "/apis/apps/v1/namespaces/gaggle-system/daemonsets",
		"ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles", "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"Role":        "/apis/rbac.authorization.k8s.io/v1/namespaces/gaggle-system/roles",
		"RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/gaggle-system/rolebindings",
	}
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var obj map[string]any
		if err := dec.Decode(&obj); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if kind, _ := obj["kind"].(string); slices.Contains(kinds, kind) {
			text, _ := json.Marshal(obj)
			s.try(t, paths[kind]+"?fieldValidation=Strict", string(text), "")
		}
	}
}

func (s *realServer) options(t *testing.T) func(*Options) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {"token": %q}}]}`, s.url, ownToken)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(o *Options) { o.Kubeconfig = path }
}

const configs = "/apis/gaggle.dev/v1alpha1/nodeconfigs"

func nodeConfig(name, spec string) string {
	return fmt.Sprintf("apiVersion: gaggle.dev/v1alpha1\nkind: NodeConfig\nmetadata: {name: %s}\nspec: %s\n", name, spec)
}

func TestRealAPIServer(t *testing.T) {
	s := startReal(t)
	s.deploy(t, "Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DaemonSet")
	s.try(t, "/api/v1/namespaces", `{metadata: {name: shop, labels: {edge: "true"}}}`, "")
	w := newWorld(t, newAPIServer(t), s.options(t)).run(t)
	eventually60(t, "the missing definition", func() bool { return strings.Contains(w.log.String(), "CustomResourceDefinition") })
	s.deploy(t, "CustomResourceDefinition")
	eventually60(t, "NodeConfigs", func() bool { code, _ := s.do(t, "GET", configs, "", nil); return code == http.StatusOK })
	eventually60(t, "no Node", func() bool { return errors.Is(w.Config().Err, ErrNoNode) })
	s.try(t, "/api/v1/nodes", `{metadata: {name: node1, labels: {rack: "1"}}, spec: {podCIDR: "10.1.0.0/24", podCIDRs: ["10.1.0.0/24", "2001:db8:1::/64"]}}`, "")
	t.Run("schema", func(t *testing.T) { testSchema(t, s) })

	t.Run("pods", func(t *testing.T) {
		const pods = "/api/v1/namespaces/shop/pods"
		s.try(t, pods, `{metadata: {name: web, annotations: {gaggle.dev/anycast: 203.0.113.1}}, spec: {nodeName: node1, containers: [{name: a, image: "web:1"}]}}`, "")
		s.try(t, pods, `{metadata: {name: other}, spec: {nodeName: node2, containers: [{name: a, image: "web:1"}]}}`, "")
		key := node.PodKey{Namespace: "shop", Name: "web"}
		facts := func() node.PodFacts { pods, _ := w.Pods(); return pods[key] }
		eventually60(t, "the pod", func() bool { return facts().UID != "" })
		start := time.Now()
		s.patch(t, pods+"/web/status", `{"status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}`)
		eventually(t, "ready", func() bool { return facts().Ready })
		t.Logf("a change was known %v after the request for it began", time.Since(start))
		if all, _ := w.Pods(); len(all) != 1 {
			t.Errorf("Pods() = %v", all)
		}
		if _, err := w.Pod(t.Context(), key, "another"); !errors.Is(err, node.ErrUnknownPod) {
			t.Errorf("Pod() = %v", err)
		}
	})
	t.Run("configuration", func(t *testing.T) {
		s.try(t, configs, nodeConfig("all", `{bgp: {asn: 64512, peers: [{name: tor, address: 192.0.2.1, asn: 64500, password: {secretRef: {name: tor, key: md5}}}]}}`), "")
		s.try(t, configs, nodeConfig("rack", `{priority: 5, nodeSelector: {matchExpressions: [{key: rack, operator: In, values: ["1"]}]}, bgp: {peers: [{name: tor, holdTime: 9s}]}}`), "")
		peers := func() int {
			r, err := convert(w.Config())
			if err != nil || r.Config.BGP == nil {
				return -1
			}
			return len(r.Config.BGP.Peers)
		}
		eventually60(t, "both documents, and no Secret", func() bool { return len(w.Config().Merged.Names) == 2 && peers() == 0 })
		s.try(t, "/api/v1/namespaces/gaggle-system/secrets", `{metadata: {name: tor}, stringData: {md5: s3cret}}`, "")
		eventually60(t, "the Secret", func() bool { return peers() == 1 })
		if r, err := convert(w.Config()); err != nil || len(r.Config.Pools) != 2 {
			t.Errorf("Convert() = %+v, %v", r, err)
		}
	})
	t.Run("told", func(t *testing.T) {
		w.NetworkReady()
		eventually60(t, "the condition", func() bool { n, _ := w.Node(); return n.networkUnavailable == "False" })
		w.Event(PodSubject(node.PodKey{Namespace: "shop", Name: "web"}, "u"), Warning, "NotGranted", "x")
		w.Event(PodSubject(node.PodKey{Namespace: "shop", Name: "web"}, "u"), Warning, "NotGranted", "x")
		w.Event(w.NodeSubject(), Normal, "Serving", "y")
		eventually60(t, "events", func() bool {
			_, shop := s.do(t, "GET", "/api/v1/namespaces/shop/events", "", nil)
			_, general := s.do(t, "GET", "/api/v1/namespaces/default/events", "", nil)
			return strings.Contains(shop, `"count":2`) && strings.Contains(general, "Serving")
		})
		if h := w.Health(); h.DroppedEvents > 0 || h.Err != nil {
			t.Errorf("Health() = %+v", h)
		}
	})
	t.Run("away", func(t *testing.T) {
		s.stop()
		eventually60(t, "noticed", func() bool { return w.Health().Err != nil })
		if pods, synced := w.Pods(); len(pods) != 1 || !synced {
			t.Errorf("Pods() = %v, %v", pods, synced)
		}
		if _, err := w.Pod(t.Context(), node.PodKey{Namespace: "shop", Name: "none"}, ""); !errors.Is(err, node.ErrNoAPI) {
			t.Errorf("Pod() = %v", err)
		}
	})
}

// testSchema tries what the API server itself must refuse, and what it must not.
func testSchema(t *testing.T, s *realServer) {
	peer := func(fields string) string { return "{bgp: {asn: 64512, peers: [{name: a, " + fields + "}]}}" }
	tests := []struct{ name, spec, refusal string }{
		{"the-example", `{nodeSelector: {matchLabels: {topology.kubernetes.io/rack: "x"}}, priority: 10,
			pools: [{name: pods, source: PodCIDRs}, {name: dmz, cidr: "2001:db8:d::/64", announce: Hosts, namespaces: [dmz], reserved: ["2001:db8:d::5", "2001:db8:d::/112"]}],
			defaults: {families: [IPv6, IPv4], ipAlgo: "namespace,app", mtu: 0, coolDown: 60s},
			grants: [{namespaces: [edge], namespaceSelector: {}, prefixes: [203.0.113.0/28, "2001:db8:f::1"], uses: [Anycast, Addresses]}],
			bgp: {asn: 64512, routerID: "", listenPort: 179, peers: [{name: tor-a, address: "fd31::ff", asn: 64500, holdTime: 9s, ttlSecurity: true,
			  gracefulRestart: {restartTime: 120s}, import: {defaultRoute: true, prefixes: [203.0.113.0/24]}}],
			  announcements: {pool: {communities: ["64512:100"], med: 0}, addresses: {largeCommunities: ["64512:1:1"], prepend: 2}}}}`, ""},
		{"empty", "{}", ""},
		{"pool-twice", "{pools: [{name: a}, {name: a}]}", "Duplicate value"},
		{"pool-of-both", `{pools: [{name: a, source: PodCIDRs, cidr: 10.0.0.0/24}]}`, "cidr and source are alternatives"},
		{"pool-cidr", `{pools: [{name: a, cidr: 10.0.0.1/24}]}`, "want a prefix without bits beyond its length"},
		{"pool-announce", `{pools: [{name: a, announce: hosts}]}`, "Unsupported value"},
		{"grant-to-nobody", `{grants: [{prefixes: [203.0.113.0/28], uses: [Anycast]}]}`, "name the namespaces"},
		{"grant-of-nothing", `{grants: [{namespaces: [a], uses: [Anycast]}]}`, "prefixes: Required value"},
		{"grant-for-what", `{grants: [{namespaces: [a], prefixes: [203.0.113.0/28], uses: [anycast]}]}`, "Unsupported value"},
		{"selector", `{nodeSelector: {matchExpressions: [{key: a, operator: In}]}}`, "In and NotIn need values"},
		{"mtu", `{defaults: {mtu: 100}}`, "want 1280 to 65535"},
		{"time", peer("holdTime: 9"), "must be of type string"},
		{"time-without-unit", peer(`holdTime: "9"`), "should match"},
		{"address", peer("address: tor"), "want the router's IP address"},
		{"hops", peer("multihop: 1"), "want 2 to 255 hops"},
		{"hops-and-ttl", peer("multihop: 3, ttlSecurity: true"), "choose one"},
		{"password", peer("password: {}"), "want one of file and secretRef"},
		{"secret-without-key", peer("password: {secretRef: {name: a}}"), "key: Required value"},
		{"asn", "{bgp: {asn: 0}}", "should be greater than or equal to 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s.try(t, configs+"?fieldValidation=Strict&dryRun=All", nodeConfig(tt.name, tt.spec), tt.refusal)
		})
	}
}
