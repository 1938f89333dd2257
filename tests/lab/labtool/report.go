package main

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
)

// kind counts the failures of one kind. First is when it was first seen, in seconds since the start.
type kind struct {
	Count int     `json:"count"`
	First float64 `json:"first_s"`
}

type kinds map[string]*kind

var varying = regexp.MustCompile(`\d+(\.\d+){3}:\d+|\[::1?\]:\d+|load-\d+-\d+`)

// add counts a failure under its operation and message, less what differs from one connection to the next.
func (k kinds) add(operation string, err error, at time.Duration) {
	text := varying.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "…")
	if r := []rune(text); len(r) > 200 {
		text = "…" + string(r[len(r)-200:])
	}
	text = operation + ": " + text
	if e := k[text]; e != nil {
		e.Count++
		e.First = min(e.First, round(at))
		return
	}
	k[text] = &kind{Count: 1, First: round(at)}
}

// round gives seconds with three decimals.
func round(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

// attempt is one request: when it was started, since the start of the run, and whether it succeeded.
type attempt struct {
	at time.Duration
	ok bool
}

// gap is a time in which nothing succeeded.
type gap struct {
	Start  float64 `json:"start"`
	Length float64 `json:"length"`
	// Open says that requests still failed at the end of the run.
	Open bool `json:"open,omitempty"`
}

// gapsOf finds the gaps in attempts sorted by start: from the start of the first failed one to the start of the next one
// that succeeded, or to the end of the run.
func gapsOf(attempts []attempt, end time.Duration) []gap {
	gaps := []gap{}
	since := time.Duration(-1)
	for _, a := range attempts {
		switch {
		case !a.ok && since < 0:
			since = a.at
		case a.ok && since >= 0:
			gaps = append(gaps, gap{Start: round(since), Length: round(a.at - since)})
			since = -1
		}
	}
	if since >= 0 {
		gaps = append(gaps, gap{Start: round(since), Length: round(max(end, since) - since), Open: true})
	}
	return gaps
}

func longest(gaps []gap) float64 {
	l := 0.0
	for _, g := range gaps {
		l = max(l, g.Length)
	}
	return l
}

type statusError int

func (s statusError) Error() string { return fmt.Sprintf("HTTP %d", int(s)) }
