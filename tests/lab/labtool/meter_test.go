package main

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestGapsRunFromTheFirstFailureToTheNextSuccess(t *testing.T) {
	for name, c := range map[string]struct {
		attempts []attempt
		want     []gap
	}{
		"none":             {[]attempt{{ms(0), true}, {ms(20), true}}, []gap{}},
		"one":              {[]attempt{{ms(0), true}, {ms(20), false}, {ms(40), false}, {ms(60), true}}, []gap{{Start: 0.02, Length: 0.04}}},
		"two":              {[]attempt{{ms(0), false}, {ms(20), true}, {ms(40), false}, {ms(60), true}}, []gap{{Length: 0.02}, {Start: 0.04, Length: 0.02}}},
		"open at the end":  {[]attempt{{ms(0), true}, {ms(20), false}}, []gap{{Start: 0.02, Length: 0.98, Open: true}}},
		"nothing was sent": {nil, []gap{}},
	} {
		if got := gapsOf(c.attempts, ms(1000)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestLeaderGaps(t *testing.T) {
	for name, c := range map[string]struct {
		states  []leaseState
		longest float64
		between float64
		holders int
	}{
		"steady":                        {[]leaseState{{"a", ms(0)}, {"a", ms(2000)}, {"a", ms(4010)}, {"a", ms(6000)}}, 0, 2.01, 1},
		"killed, taken after expiry":    {[]leaseState{{"a", ms(0)}, {"b", ms(5000)}}, 3, 5, 2},
		"released, then taken":          {[]leaseState{{"a", ms(0)}, {"", ms(1000)}, {"b", ms(5000)}}, 4, 5, 2},
		"released without a new time":   {[]leaseState{{"a", ms(0)}, {"", ms(0)}, {"b", ms(5000)}}, 3, 5, 2},
		"nobody takes it until the end": {[]leaseState{{"a", ms(0)}}, 4, 6, 1},
		"renewed before the run":        {[]leaseState{{"a", ms(-1500)}, {"a", ms(510)}, {"a", ms(2515)}, {"a", ms(4520)}}, 0, 2.01, 1},
		"never held":                    {[]leaseState{{"", ms(0)}}, 6, 0, 0},
	} {
		got := leadersOf(c.states, ms(6000))
		if got.Longest != c.longest || got.Between != c.between || len(got.Holders) != c.holders {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAddressesBelow(t *testing.T) {
	changes := []change{{0, 3}, {1, 2}, {2, 0}, {4, 3}, {9, 2}}
	if total, longest := below(changes, 1, 10); total != 2 || longest != 2 {
		t.Errorf("empty: %v %v", total, longest)
	}
	if total, longest := below(changes, 3, 10); total != 4 || longest != 3 {
		t.Errorf("fewer: %v %v", total, longest)
	}
}

func TestKindsForgetWhatDiffersFromConnectionToConnection(t *testing.T) {
	k := kinds{}
	k.add("connect", errors.New("dial tcp 10.0.0.1:6443: connect: connection refused"), ms(30))
	k.add("connect", errors.New("dial tcp 10.0.0.2:6443: connect: connection refused"), ms(10))
	if len(k) != 1 {
		t.Fatalf("%d kinds", len(k))
	}
	for _, e := range k {
		if e.Count != 2 || e.First != 0.01 {
			t.Errorf("%+v", *e)
		}
	}
}
