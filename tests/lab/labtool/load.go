package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// maxClients is for how many clients there are ConfigMaps.
const maxClients = 64

const requestTimeout = 10 * time.Second

// protocolReport is about the clients of one protocol.
type protocolReport struct {
	Clients  int   `json:"clients"`
	Requests int   `json:"requests"`
	Failed   int   `json:"failed"`
	Kinds    kinds `json:"kinds"`
	// Slowest is of the requests that succeeded.
	Slowest float64 `json:"slowest_s"`
	// Protocols counts answers by the protocol they really came over.
	Protocols map[string]int `json:"protocols"`
	// Retried counts answers (429 and 5xx with Retry-After) after which client-go tries again by itself.
	Retried int `json:"retried_answers"`
	// Connections is how many were opened: as many as clients when none was ever closed.
	Connections int `json:"connections"`
	// FailedPerConnection counts failed requests by the connection they were sent on.
	FailedPerConnection map[string]int `json:"failed_per_connection"`
	// FailedUnconnected counts those that got no connection.
	FailedUnconnected int `json:"failed_unconnected"`
	MaxPerConnection  int `json:"max_failed_per_connection"`
}

type watchReport struct {
	Watches int `json:"watches"`
	Events  int `json:"events"`
	// Reopened counts watches that had been cut and were opened again at the first try.
	Reopened int `json:"reopened"`
	Failed   int `json:"failed_to_open"`
	// Kinds tells why watches could not be opened.
	Kinds kinds `json:"kinds"`
	// LongestSilence is the longest time in which a watch brought no event of an object that changes all the time.
	LongestSilence float64 `json:"longest_silence_s"`
}

type loadReport struct {
	Seconds float64         `json:"seconds"`
	HTTP2   *protocolReport `json:"http2"`
	HTTP1   *protocolReport `json:"http1"`
	Watches watchReport     `json:"watches"`
}

func loadMeter(flags *flag.FlagSet) func(string) meter {
	clients := flags.Int("clients", 8, "clients, half of them over HTTP/2 and half over HTTP/1.1")
	watches := flags.Int("watches", 10, "watches, half of them over each protocol")
	pause := flags.Duration("pause", 60*time.Millisecond, "pause of a client between two requests")
	return func(kubeconfig string) meter {
		return func(ctx context.Context, ready func()) (any, error) {
			if *clients < 2 || *clients > maxClients {
				return nil, fmt.Errorf("--clients must be from 2 to %d", maxClients)
			}
			return (&loader{kubeconfig: kubeconfig, clients: *clients, watches: *watches, pause: *pause}).run(ctx, ready)
		}
	}
}

type loader struct {
	kubeconfig       string
	clients, watches int
	pause            time.Duration
	begin            time.Time
	sync.Mutex
	report loadReport
}

func (l *loader) run(ctx context.Context, ready func()) (any, error) {
	base, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig)
	if err != nil {
		return nil, err
	}
	base.QPS = -1
	base.UserAgent = "lab-load"
	l.report = loadReport{HTTP2: newProtocolReport(), HTTP1: newProtocolReport(), Watches: watchReport{Watches: l.watches, Kinds: kinds{}}}
	l.begin = time.Now()
	var all, started sync.WaitGroup
	for i := range l.clients + l.watches {
		r := l.report.HTTP2
		if i%2 == 1 {
			r = l.report.HTTP1
		}
		watch := i >= l.clients
		c, err := l.newClient(base, r, !watch)
		if err != nil {
			return nil, err
		}
		started.Add(1)
		var once sync.Once
		running := func() { once.Do(started.Done) }
		if watch {
			all.Go(func() { l.watch(ctx, c, running) })
			continue
		}
		r.Clients++
		all.Go(func() { l.requests(ctx, c, i, running) })
	}
	go func() { started.Wait(); ready() }()
	all.Wait()
	l.report.Seconds = round(time.Since(l.begin))
	for _, r := range []*protocolReport{l.report.HTTP1, l.report.HTTP2} {
		for _, n := range r.FailedPerConnection {
			r.MaxPerConnection = max(r.MaxPerConnection, n)
		}
	}
	return &l.report, nil
}

func newProtocolReport() *protocolReport {
	return &protocolReport{Kinds: kinds{}, Protocols: map[string]int{}, FailedPerConnection: map[string]int{}}
}

// client has a connection of its own, which it keeps for as long as the server does.
type client struct {
	report *protocolReport
	core   *kubernetes.Clientset
	dyn    *dynamic.DynamicClient
}

// newClient gives the client a Dial function of its own, so that client-go builds a transport of its own.
func (l *loader) newClient(base *rest.Config, r *protocolReport, counted bool) (client, error) {
	c := rest.CopyConfig(base)
	if r == l.report.HTTP1 {
		c.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		plain, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if counted {
			l.Lock()
			r.Connections++
			l.Unlock()
		}
		return plain, nil
	}
	if counted {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { return &observer{next, l, r} })
	}
	h, err := rest.HTTPClientFor(c)
	if err != nil {
		return client{}, err
	}
	core, err := kubernetes.NewForConfigAndClient(c, h)
	if err != nil {
		return client{}, err
	}
	dyn, err := dynamic.NewForConfigAndClient(c, h)
	return client{r, core, dyn}, err
}

// observer notes what client-go hides: the protocol, the connection, and the answers after which it tries again.
type observer struct {
	next http.RoundTripper
	l    *loader
	r    *protocolReport
}

func (o *observer) RoundTrip(q *http.Request) (*http.Response, error) {
	a, err := o.next.RoundTrip(q)
	if err == nil {
		o.l.Lock()
		o.r.Protocols[a.Proto]++
		if a.Header.Get("Retry-After") != "" && (a.StatusCode == http.StatusTooManyRequests || a.StatusCode >= 500) {
			o.r.Retried++
		}
		o.l.Unlock()
	}
	return a, err
}

// requests works until ctx ends. In a round of six a client reads and patches a ConfigMap, makes, replaces and takes away a
// custom resource, and reads or lists. What needs an object that could not be made is left out: one failure counts once.
func (l *loader) requests(ctx context.Context, c client, i int, running func()) {
	maps, customs := c.core.CoreV1().ConfigMaps(namespace), c.dyn.Resource(things).Namespace(namespace)
	own := fmt.Sprintf("load-%d", i)
	var made *unstructured.Unstructured
	get := func(ctx context.Context) error { _, err := maps.Get(ctx, own, metav1.GetOptions{}); return err }
	for k := 0; ctx.Err() == nil; k++ {
		operation, do := "GET", get
		switch k % 6 {
		case 1:
			made = nil
			operation, do = "POST", func(ctx context.Context) (err error) {
				o, err := customs.Create(ctx, thing(fmt.Sprintf("load-%d-%d", i, time.Now().UnixNano())), metav1.CreateOptions{})
				if err == nil {
					made = o
				}
				return err
			}
		case 2:
			operation, do = "PATCH", func(ctx context.Context) error {
				_, err := maps.Patch(ctx, own, types.MergePatchType, fmt.Appendf(nil, `{"data":{"k":"%d"}}`, k), metav1.PatchOptions{})
				return err
			}
		case 3:
			if made != nil {
				operation, do = "PUT", func(ctx context.Context) error {
					made.Object["value"] = "1"
					_, err := customs.Update(ctx, made, metav1.UpdateOptions{})
					return err
				}
			}
		case 4:
			if k%24 == 4 {
				operation, do = "LIST", func(ctx context.Context) error {
					_, err := customs.List(ctx, metav1.ListOptions{Limit: 5})
					return err
				}
			}
		case 5:
			if made != nil {
				operation, do = "DELETE", func(ctx context.Context) error {
					return customs.Delete(ctx, made.GetName(), metav1.DeleteOptions{})
				}
			}
		}
		l.send(c, operation, do)
		running()
		select {
		case <-ctx.Done():
		case <-time.After(l.pause):
		}
	}
}

func (l *loader) send(c client, operation string, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	var connection atomic.Value
	connection.Store("")
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(g httptrace.GotConnInfo) {
		// The local address names a connection: its port is not given out again within a run of some minutes.
		connection.Store(g.Conn.LocalAddr().String())
	}})
	at := time.Since(l.begin)
	err := do(ctx)
	took := time.Since(l.begin) - at
	l.Lock()
	defer l.Unlock()
	c.report.Requests++
	if err == nil {
		c.report.Slowest = max(c.report.Slowest, round(took))
		return
	}
	c.report.Failed++
	c.report.Kinds.add(operation, err, at)
	if name, _ := connection.Load().(string); name != "" {
		c.report.FailedPerConnection[name]++
	} else {
		c.report.FailedUnconnected++
	}
}

// watch keeps a watch open until ctx ends: one that is cut is opened again at once.
func (l *loader) watch(ctx context.Context, c client, running func()) {
	maps := c.core.CoreV1().ConfigMaps(namespace)
	opened, failing := false, false
	last := time.Duration(-1)
	for ctx.Err() == nil {
		at := time.Since(l.begin)
		w, err := maps.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=load-0"})
		l.Lock()
		if err != nil && ctx.Err() == nil {
			l.report.Watches.Failed++
			l.report.Watches.Kinds.add("WATCH", err, at)
		} else if err == nil && opened && !failing {
			l.report.Watches.Reopened++
		}
		l.Unlock()
		running()
		failing = err != nil
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
			continue
		}
		opened = true
		for range w.ResultChan() {
			l.Lock()
			l.report.Watches.Events++
			now := time.Since(l.begin)
			if last >= 0 {
				l.report.Watches.LongestSilence = max(l.report.Watches.LongestSilence, round(now-last))
			}
			last = now
			l.Unlock()
		}
	}
}
