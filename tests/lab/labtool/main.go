// Command labtool holds what the lab needs beside Kubernetes itself: it packs images, is the first process of a node,
// makes the ordinary user, and measures what clients of the API notice.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

const usage = `labtool COMMAND [FLAG...]
  image OUT.tar NAME:TAG ENTRY=FILE...   pack static binaries as a container image
  init NODE.json                         be the first process of a node
  user                                   make the ordinary user, its rights and the objects the meters work on
  probe                                  a new connection for every request, on a fixed schedule
  load                                   clients that keep their connections, over HTTP/2 and HTTP/1.1, and watches
  watch-endpoints                        for how long the addresses of default/kubernetes are missing
  leader-gaps                            for how long scheduler and controller manager have no leader
`

// meter is a measurement: it runs until ctx ends, calls ready once it measures, and returns its report.
type meter func(ctx context.Context, ready func()) (any, error)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("a command is missing\n" + usage)
	}
	name, rest := args[0], args[1:]
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	switch name {
	case "image":
		return packImage(rest)
	case "init":
		return initNode(rest)
	case "user":
		return makeUser(flags, rest)
	case "probe":
		return measure(flags, rest, probeMeter(flags))
	case "load":
		return measure(flags, rest, loadMeter(flags))
	case "watch-endpoints":
		return measure(flags, rest, endpointsMeter(flags))
	case "leader-gaps":
		return measure(flags, rest, leadersMeter(flags))
	}
	return errors.New("unknown command " + name + "\n" + usage)
}

// measure runs a meter for --seconds, or until SIGINT or SIGTERM, and prints its report as JSON. The line "ready" on
// standard error says that the meter measures from now on.
func measure(flags *flag.FlagSet, args []string, m func(kubeconfig string) meter) error {
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig of the user to work as")
	seconds := flags.Float64("seconds", 0, "end after so many seconds; 0: when signalled")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *kubeconfig == "" || flags.NArg() > 0 {
		return errors.New(flags.Name() + " needs --kubeconfig FILE and takes no other arguments than flags")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var once sync.Once
	ready := func() {
		once.Do(func() {
			fmt.Fprintln(os.Stderr, "ready")
			if *seconds > 0 {
				time.AfterFunc(time.Duration(*seconds*float64(time.Second)), cancel)
			}
		})
	}
	report, err := m(*kubeconfig)(ctx, ready)
	if err != nil {
		return err
	}
	out, err := json.MarshalIndent(report, "", " ")
	if err != nil {
		return err
	}
	_, err = fmt.Println(string(out))
	return err
}
