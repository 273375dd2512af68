package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// An apiServer is as much of a Kubernetes API server as this package speaks to: lists, watches, single objects, Events and
// patches, in JSON. It holds state. What it does not know it answers as the real one does.
type apiServer struct {
	*httptest.Server

	mu       sync.Mutex
	version  int
	history  []past                    // from version 1 on
	objects  map[string]map[string]any // by path: "api/v1/namespaces/shop/pods/web"
	watchers map[chan change]string    // and what they watch
	refuse   map[string]int            // HTTP status by resource
	writes   []string                  // "PATCH api/v1/nodes/node1/status", in order
	gets     []string                  // single objects that were asked for
	hang     chan struct{}             // requests wait while it is open
}

// A past is a change that a watch can begin with.
type past struct {
	change
	path string
}

var kinds = map[string]string{
	"pods": "Pod", "nodes": "Node", "secrets": "Secret", "namespaces": "Namespace", "nodeconfigs": "NodeConfig", "events": "Event",
}

type change struct {
	kind   string
	object map[string]any
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{objects: make(map[string]map[string]any), watchers: make(map[chan change]string), refuse: make(map[string]int)}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		if s.hang != nil {
			close(s.hang)
		}
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// kubeconfig returns the path of a file that leads here.
func (s *apiServer) kubeconfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": %q}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]}`, s.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// put creates or replaces an object: a path such as "api/v1/namespaces/shop/pods/web", and its JSON without what the path says.
func (s *apiServer) put(t *testing.T, path, text string) {
	t.Helper()
	var obj map[string]any
	if err := json.Unmarshal([]byte(text), &obj); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(path, obj)
}

func (s *apiServer) putLocked(path string, obj map[string]any) {
	parts := strings.Split(path, "/")
	resource := parts[len(parts)-2]
	obj["kind"], obj["apiVersion"] = kinds[resource], "v1"
	if parts[0] == "apis" {
		obj["apiVersion"] = parts[1] + "/" + parts[2]
	}
	old, _ := obj["metadata"].(map[string]any)
	meta := maps.Clone(old) // others may be reading what there was
	if meta == nil {
		meta = make(map[string]any)
	}
	obj["metadata"] = meta
	meta["name"] = parts[len(parts)-1]
	if parts[len(parts)-4] == "namespaces" {
		meta["namespace"] = parts[len(parts)-3]
	}
	s.version++
	meta["resourceVersion"] = strconv.Itoa(s.version)
	kindOfChange := "MODIFIED"
	if s.objects[path] == nil {
		kindOfChange = "ADDED"
	}
	s.objects[path] = obj
	s.tellLocked(kindOfChange, path, obj)
}

func (s *apiServer) remove(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	obj := maps.Clone(s.objects[path])
	delete(s.objects, path)
	s.tellLocked("DELETED", path, obj)
}

func (s *apiServer) tellLocked(kind, path string, obj map[string]any) {
	s.history = append(s.history, past{change{kind, obj}, path})
	for ch, filter := range s.watchers {
		if matches(filter, path, obj) {
			ch <- change{kind, obj}
		}
	}
}

// dropWatches ends every watch, as a restart does.
func (s *apiServer) dropWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.watchers {
		close(ch)
		delete(s.watchers, ch)
	}
}

// setRefusal lets requests for a resource fail with an HTTP status; 0 for none any more.
func (s *apiServer) setRefusal(resource string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[resource] = status
}

func (s *apiServer) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// matches reports whether a filter, "collection?field=value", has the object.
func matches(filter, path string, obj map[string]any) bool {
	collection, selector, _ := strings.Cut(filter, "?")
	parts := strings.Split(path, "/")
	resource := parts[len(parts)-2]
	all := "api/v1/" + resource
	if collection != strings.Join(parts[:len(parts)-1], "/") && collection != all {
		return false
	}
	if selector == "" {
		return true
	}
	field, want, _ := strings.Cut(selector, "=")
	var value any = obj
	for part := range strings.SplitSeq(field, ".") {
		m, _ := value.(map[string]any)
		value = m[part]
	}
	return value == want
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	parts := strings.Split(path, "/")
	s.mu.Lock()
	hang := s.hang
	status := 0
	for _, part := range parts {
		if code := s.refuse[part]; code != 0 {
			status = code
		}
	}
	s.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-r.Context().Done():
			return
		}
	}
	query := r.URL.Query()
	switch {
	case status != 0:
		fail(w, status)
	case query.Get("sendInitialEvents") != "":
		fail(w, http.StatusUnprocessableEntity) // a server without the feature; the list that follows is what others do
	case query.Get("watch") != "":
		s.watch(w, r, path+"?"+query.Get("fieldSelector"))
	case r.Method == http.MethodGet:
		s.get(w, path, path+"?"+query.Get("fieldSelector"))
	default:
		s.write(w, r, path)
	}
}

func fail(w http.ResponseWriter, status int) {
	reason := map[int]string{
		http.StatusForbidden: "Forbidden", http.StatusNotFound: "NotFound", http.StatusUnprocessableEntity: "Invalid", http.StatusUnauthorized: "Unauthorized",
	}[status]
	answer(w, status, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status, "message": reason})
}

func answer(w http.ResponseWriter, status int, obj any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(obj)
}

func (s *apiServer) get(w http.ResponseWriter, path, filter string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := strings.Split(path, "/")
	kind, collection := kinds[parts[len(parts)-1]]
	if !collection {
		s.gets = append(s.gets, path)
		if obj := s.objects[path]; obj != nil {
			answer(w, http.StatusOK, obj)
			return
		}
		fail(w, http.StatusNotFound)
		return
	}
	items := []any{}
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		if matches(filter, path, s.objects[path]) {
			items = append(items, s.objects[path])
		}
	}
	version := "v1"
	if parts[0] == "apis" {
		version = parts[1] + "/" + parts[2]
	}
	answer(w, http.StatusOK, map[string]any{
		"kind": kind + "List", "apiVersion": version, "items": items, "metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)},
	})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, filter string) {
	ch := make(chan change, 1000)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	for _, p := range s.history[from:] {
		if matches(filter, p.path, p.object) {
			ch <- p.change
		}
	}
	s.watchers[ch] = filter
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, ch)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flusher, _ := w.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case c, ok := <-ch:
			if !ok {
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"type": c.kind, "object": c.object})
			flusher.Flush()
		}
	}
}

func (s *apiServer) write(w http.ResponseWriter, r *http.Request, path string) {
	data, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, r.Method+" "+path)
	if strings.HasPrefix(r.Header.Get("Content-Type"), runtime.ContentTypeProtobuf) {
		scheme := runtime.NewScheme()
		_ = corev1.AddToScheme(scheme)
		obj, err := runtime.Decode(serializer.NewCodecFactory(scheme).UniversalDeserializer(), data)
		if err != nil {
			fail(w, http.StatusBadRequest)
			return
		}
		data, _ = json.Marshal(obj)
	}
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		fail(w, http.StatusBadRequest)
		return
	}
	target := strings.TrimSuffix(path, "/status")
	if r.Method == http.MethodPost {
		meta := body["metadata"].(map[string]any)
		target = path + "/" + meta["name"].(string)
		s.putLocked(target, body)
		answer(w, http.StatusCreated, body)
		return
	}
	obj := s.objects[target]
	if obj == nil {
		fail(w, http.StatusNotFound)
		return
	}
	merged := maps.Clone(obj)
	maps.Copy(merged, body)
	s.putLocked(target, merged)
	answer(w, http.StatusOK, merged)
}

// eventually waits for a condition that some goroutine brings about.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for end := time.After(5 * time.Second); !holds(); {
		select {
		case <-ticker.C:
		case <-end:
			t.Fatalf("never: %s", what)
		}
	}
}
