package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// addressesReport tells how many addresses of default/kubernetes there were, as seen by a client that watches.
type addressesReport struct {
	// Initial is how many there were at the start.
	Initial int `json:"initial"`
	// EmptyTotal and EmptyLongest: no address at all. FewerTotal and FewerLongest: fewer than at the start.
	EmptyTotal   float64 `json:"empty_total_s"`
	EmptyLongest float64 `json:"empty_longest_s"`
	FewerTotal   float64 `json:"fewer_total_s"`
	FewerLongest float64 `json:"fewer_longest_s"`
	// Changes are [time, number of addresses].
	Changes []change `json:"changes"`
	// Reopened counts how often the watch was cut and opened again, Failed how often it could not be opened.
	Reopened int   `json:"reopened"`
	Failed   int   `json:"failed_to_open"`
	Kinds    kinds `json:"kinds"`
}

type endpointsReport struct {
	Seconds        float64          `json:"seconds"`
	EndpointSlices *addressesReport `json:"endpointslices"`
	Endpoints      *addressesReport `json:"endpoints"`
}

func endpointsMeter(_ *flag.FlagSet) func(string) meter {
	return func(kubeconfig string) meter {
		return func(ctx context.Context, ready func()) (any, error) { return watchEndpoints(ctx, ready, kubeconfig) }
	}
}

func watchEndpoints(ctx context.Context, ready func(), kubeconfig string) (any, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Dial = (&net.Dialer{Timeout: 2 * time.Second}).DialContext
	// Endpoints are deprecated: known.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	followers := []*follower{newFollower(endpointSlices(core), begin), newFollower(endpoints(core), begin)}
	done := make(chan struct{})
	for _, f := range followers {
		if err := f.list(ctx); err != nil {
			return nil, err
		}
		f.report.Initial = f.total()
		go func() { f.follow(ctx); done <- struct{}{} }()
	}
	ready()
	for range followers {
		<-done
	}
	end := time.Since(begin)
	for _, f := range followers {
		f.report.sum(end)
	}
	return endpointsReport{round(end), &followers[0].report, &followers[1].report}, nil
}

// change is a number of addresses and since when it is so.
type change struct {
	At        float64 `json:"at"`
	Addresses int     `json:"addresses"`
}

// sum works out the times of a run that ended at end.
func (r *addressesReport) sum(end time.Duration) {
	r.EmptyTotal, r.EmptyLongest = below(r.Changes, 1, round(end))
	r.FewerTotal, r.FewerLongest = below(r.Changes, r.Initial, round(end))
}

// below gives for how long there were fewer than n addresses, in total and at the longest.
func below(changes []change, n int, end float64) (total, longest float64) {
	since := -1.0
	for _, c := range append(changes[:len(changes):len(changes)], change{end, n}) {
		if c.Addresses < n && since < 0 {
			since = c.At
		}
		if c.Addresses >= n && since >= 0 {
			total, longest, since = total+c.At-since, max(longest, c.At-since), -1
		}
	}
	return total, longest
}

// source is one kind of object that holds the addresses.
type source struct {
	list  func(context.Context) (runtime.Object, error)
	watch func(context.Context, string) (watch.Interface, error)
	// count is the number of addresses in one object.
	count func(runtime.Object) int
}

func endpointSlices(core kubernetes.Interface) source {
	client := core.DiscoveryV1().EndpointSlices("default")
	selector := discoveryv1.LabelServiceName + "=kubernetes"
	return source{
		list: func(ctx context.Context) (runtime.Object, error) {
			return client.List(ctx, metav1.ListOptions{LabelSelector: selector})
		},
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			return client.Watch(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: version})
		},
		count: func(o runtime.Object) int {
			n := 0
			if s, ok := o.(*discoveryv1.EndpointSlice); ok {
				for _, e := range s.Endpoints {
					if e.Conditions.Ready == nil || *e.Conditions.Ready {
						n += len(e.Addresses)
					}
				}
			}
			return n
		},
	}
}

// endpoints are deprecated, and still what many clients read.
func endpoints(core kubernetes.Interface) source {
	client := core.CoreV1().Endpoints("default")
	selector := "metadata.name=kubernetes"
	return source{
		list: func(ctx context.Context) (runtime.Object, error) {
			return client.List(ctx, metav1.ListOptions{FieldSelector: selector})
		},
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			return client.Watch(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: version})
		},
		count: func(o runtime.Object) int {
			n := 0
			if e, ok := o.(*corev1.Endpoints); ok {
				for _, s := range e.Subsets {
					n += len(s.Addresses)
				}
			}
			return n
		},
	}
}

// follower keeps the state of one source. A watch that is cut goes on from the version last seen, so that no change is
// missed; what happened meanwhile is dated when it is learnt.
type follower struct {
	source
	begin   time.Time
	version string
	objects map[string]int
	report  addressesReport
}

func newFollower(s source, begin time.Time) *follower {
	return &follower{source: s, begin: begin, report: addressesReport{Changes: []change{}, Kinds: kinds{}}}
}

func (f *follower) total() int {
	n := 0
	for _, c := range f.objects {
		n += c
	}
	return n
}

func (f *follower) note() {
	n := f.total()
	if l := len(f.report.Changes); l == 0 || f.report.Changes[l-1].Addresses != n {
		f.report.Changes = append(f.report.Changes, change{round(time.Since(f.begin)), n})
	}
}

func (f *follower) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	l, err := f.source.list(ctx)
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(l)
	if err != nil {
		return err
	}
	m, err := meta.ListAccessor(l)
	if err != nil {
		return err
	}
	f.objects, f.version = map[string]int{}, m.GetResourceVersion()
	for _, o := range items {
		m, err := meta.Accessor(o)
		if err != nil {
			return err
		}
		f.objects[m.GetName()] = f.count(o)
	}
	f.note()
	return nil
}

func (f *follower) follow(ctx context.Context) {
	opened := false
	for ctx.Err() == nil {
		err := f.watchOnce(ctx, opened)
		opened = true
		if err != nil && ctx.Err() == nil {
			f.report.Failed++
			f.report.Kinds.add("WATCH", err, time.Since(f.begin))
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

func (f *follower) watchOnce(ctx context.Context, again bool) error {
	if f.version == "" {
		if err := f.list(ctx); err != nil {
			return err
		}
	}
	w, err := f.watch(ctx, f.version)
	if err != nil {
		return err
	}
	defer w.Stop()
	if again {
		f.report.Reopened++
	}
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			// The version is too old: list again.
			f.version = ""
			return fmt.Errorf("%v", e.Object)
		}
		m, err := meta.Accessor(e.Object)
		if err != nil {
			return err
		}
		f.version = m.GetResourceVersion()
		if e.Type == watch.Deleted {
			delete(f.objects, m.GetName())
		} else {
			f.objects[m.GetName()] = f.count(e.Object)
		}
		f.note()
	}
	return nil
}
