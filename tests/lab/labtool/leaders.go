package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// renewalPeriod is how often a leader renews its Lease: the default of --leader-elect-retry-period.
const renewalPeriod = 2 * time.Second

// leaderReport is about one Lease. The times are those the leaders wrote into it, so they do not depend on when it was read.
type leaderReport struct {
	// Longest is the longest time without a leader that is certain: from a release (or else from the moment the next renewal
	// was due) to the first renewal of the next leader.
	Longest float64 `json:"longest_without_leader_s"`
	// Between is the longest time between two renewals; a leader that was killed right after a renewal was missing that long.
	Between float64 `json:"longest_between_renewals_s"`
	Gaps    []gap   `json:"gaps"`
	// Holders in their order.
	Holders  []string `json:"holders"`
	Renewals int      `json:"renewals"`
}

type leadersReport struct {
	Seconds float64                  `json:"seconds"`
	Leases  map[string]*leaderReport `json:"leases"`
	Polls   int                      `json:"polls"`
	Failed  int                      `json:"failed_polls"`
	Kinds   kinds                    `json:"kinds"`
}

func leadersMeter(flags *flag.FlagSet) func(string) meter {
	interval := flags.Duration("interval", 100*time.Millisecond, "time between two reads of a Lease")
	return func(kubeconfig string) meter {
		return func(ctx context.Context, ready func()) (any, error) {
			return watchLeaders(ctx, ready, kubeconfig, *interval)
		}
	}
}

func watchLeaders(ctx context.Context, ready func(), kubeconfig string, interval time.Duration) (any, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Timeout = -1, 2*time.Second
	config.Dial = (&net.Dialer{Timeout: time.Second}).DialContext
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	report := leadersReport{Leases: map[string]*leaderReport{}, Kinds: kinds{}}
	begin := time.Now()
	var mutex sync.Mutex
	var all sync.WaitGroup
	states := map[string][]leaseState{}
	for _, name := range []string{"kube-scheduler", "kube-controller-manager"} {
		all.Go(func() {
			for ; ctx.Err() == nil; wait(ctx, interval) {
				l, err := core.CoordinationV1().Leases("kube-system").Get(context.WithoutCancel(ctx), name, metav1.GetOptions{})
				mutex.Lock()
				report.Polls++
				if err != nil {
					report.Failed++
					report.Kinds.add("GET "+name, err, time.Since(begin))
				} else if l.Spec.RenewTime != nil {
					s := leaseState{at: l.Spec.RenewTime.Sub(begin)}
					if l.Spec.HolderIdentity != nil {
						s.holder = *l.Spec.HolderIdentity
					}
					if known := states[name]; len(known) == 0 || known[len(known)-1] != s {
						states[name] = append(known, s)
					}
				}
				mutex.Unlock()
				ready()
			}
		})
	}
	all.Wait()
	end := time.Since(begin)
	for _, name := range []string{"kube-scheduler", "kube-controller-manager"} {
		if len(states[name]) == 0 {
			return nil, fmt.Errorf("the Lease kube-system/%s could not be read once: %v", name, report.Kinds)
		}
		report.Leases[name] = leadersOf(states[name], end)
	}
	report.Seconds = round(end)
	return report, nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// leaseState is what a Lease said: its holder, empty after a release, and when that was written, since the start of the run.
type leaseState struct {
	holder string
	at     time.Duration
}

// leadersOf works out the times from the states a Lease went through, in their order.
func leadersOf(states []leaseState, end time.Duration) *leaderReport {
	r := &leaderReport{Gaps: []gap{}, Holders: []string{}}
	var last *leaseState
	var released *time.Duration
	missing := func(until time.Duration, open bool) {
		from := last.at + renewalPeriod
		if released != nil && *released > last.at {
			from = *released
		}
		r.Between = max(r.Between, round(until-last.at))
		// A renewal is late by some milliseconds all the time.
		if until-from > 250*time.Millisecond {
			r.Gaps = append(r.Gaps, gap{round(from), round(until - from), open})
		}
	}
	for i, s := range states {
		if s.holder == "" {
			// Whoever takes the holder out may leave the time as it was: then the renewal due counts.
			if released == nil {
				released = &states[i].at
			}
			continue
		}
		r.Renewals++
		if last == nil || last.holder != s.holder {
			r.Holders = append(r.Holders, s.holder)
		}
		if last != nil {
			missing(s.at, false)
		}
		last, released = &states[i], nil
	}
	if last == nil {
		r.Gaps = append(r.Gaps, gap{0, round(end), true})
	} else {
		missing(end, true)
	}
	r.Longest = longest(r.Gaps)
	return r
}
