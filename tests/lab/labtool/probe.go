package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

type probeReport struct {
	Seconds  float64 `json:"seconds"`
	Requests int     `json:"requests"`
	Failed   int     `json:"failed"`
	Kinds    kinds   `json:"kinds"`
	// FailedByServer counts failures by the address that was asked.
	FailedByServer map[string]int `json:"failed_by_server"`
	Gaps           []gap          `json:"gaps"`
	LongestGap     float64        `json:"longest_gap_s"`
	// Slowest is of the requests that succeeded.
	Slowest float64 `json:"slowest_s"`
}

type servers []string

func (s *servers) String() string     { return strings.Join(*s, ",") }
func (s *servers) Set(v string) error { *s = append(*s, v); return nil }

// probeMeter sends each request over a TCP and TLS connection of its own. Requests start on a fixed schedule, whether or
// not earlier ones are answered, and none is ever tried again, but with --failover at the next server.
func probeMeter(flags *flag.FlagSet) func(string) meter {
	var to servers
	flags.Var(&to, "server", "https://HOST:PORT to ask, several in turn (default: the kubeconfig's)")
	failover := flags.Bool("failover", false, "ask the next server when one fails or does not answer 200; a request has failed when all have")
	interval := flags.Duration("interval", 20*time.Millisecond, "time between the starts of two requests")
	timeout := flags.Duration("timeout", 5*time.Second, "time a request may take")
	return func(kubeconfig string) meter {
		return func(ctx context.Context, ready func()) (any, error) {
			return probe(ctx, ready, kubeconfig, to, *failover, *interval, *timeout)
		}
	}
}

func probe(ctx context.Context, ready func(), kubeconfig string, to servers, failover bool, interval, timeout time.Duration) (any, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	if len(to) == 0 {
		to = servers{config.Host}
	}
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	settings.NextProtos = []string{"http/1.1"}
	targets := []target{}
	for _, s := range to {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "https" || u.Port() == "" {
			return nil, fmt.Errorf("--server %q is not https://HOST:PORT", s)
		}
		t := settings.Clone()
		t.ServerName = u.Hostname()
		targets = append(targets, target{u.Host, t})
	}

	var mutex sync.Mutex
	var running sync.WaitGroup
	report := probeReport{Kinds: kinds{}, FailedByServer: map[string]int{}}
	attempts := []attempt{}
	begin := time.Now()
	ready()
	tick := time.NewTimer(0)
	for k := 0; ; k++ {
		// Against the start, not the last request: the schedule does not drift, and what was late is caught up.
		tick.Reset(time.Until(begin.Add(time.Duration(k) * interval)))
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			t := targets[k%len(targets)]
			at := time.Since(begin)
			operation, err := t.request(k/len(targets), timeout)
			for next := 1; failover && err != nil && next < len(targets); next++ {
				operation, err = targets[(k+next)%len(targets)].request(k/len(targets), timeout)
			}
			took := time.Since(begin) - at
			mutex.Lock()
			defer mutex.Unlock()
			attempts = append(attempts, attempt{at, err == nil})
			if err == nil {
				report.Slowest = max(report.Slowest, round(took))
				return
			}
			report.Failed++
			report.FailedByServer[t.address]++
			report.Kinds.add(operation, err, at)
		})
	}
	end := time.Since(begin)
	running.Wait()
	slices.SortFunc(attempts, func(a, b attempt) int { return int(a.at - b.at) })
	report.Seconds, report.Requests = round(end), len(attempts)
	report.Gaps = gapsOf(attempts, end)
	report.LongestGap = longest(report.Gaps)
	return report, nil
}

type target struct {
	address string
	tls     *tls.Config
}

// request sends the k-th request: of ten, one is a write and two read a custom resource.
func (t target) request(k int, timeout time.Duration) (string, error) {
	method, path, body := http.MethodGet, "/api/v1/namespaces/"+namespace+"/configmaps/probe", ""
	switch k % 10 {
	case 3:
		method, body = http.MethodPatch, fmt.Sprintf(`{"data":{"k":"%d"}}`, k)
	case 5, 8:
		path = "/apis/" + things.Group + "/" + things.Version + "/namespaces/" + namespace + "/" + things.Resource + "/probe"
	}
	deadline := time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.address)
	if err != nil {
		return "connect", err
	}
	defer plain.Close()
	if err := plain.SetDeadline(deadline); err != nil {
		return "connect", err
	}
	c := tls.Client(plain, t.tls)
	if err := c.HandshakeContext(ctx); err != nil {
		return "handshake", err
	}
	q, err := http.NewRequestWithContext(ctx, method, "https://"+t.address+path, strings.NewReader(body))
	if err != nil {
		return method, err
	}
	q.Header.Set("User-Agent", "lab-probe")
	q.Close = true
	if body != "" {
		q.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if err := q.Write(c); err != nil {
		return method, fmt.Errorf("write: %w", err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), q)
	if err != nil {
		return method, fmt.Errorf("read: %w", err)
	}
	defer r.Body.Close()
	answer, err := io.ReadAll(r.Body)
	if err != nil {
		return method, fmt.Errorf("read body: %w", err)
	}
	if r.StatusCode != http.StatusOK {
		return method, statusError(r.StatusCode)
	}
	if len(answer) == 0 {
		return method, errors.New("empty answer")
	}
	return method, nil
}
