package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// node describes a node to its first process.
type node struct {
	Hostname string `json:"hostname"`
	// Files is the directory that holds the node's own version of each directory in Private.
	Files   string   `json:"files"`
	Private []string `json:"private"`
	// PrivateFiles are single files of which the node has its own version.
	PrivateFiles []string `json:"private_files"`
	// Shared are those of Private that pass mounts on to the containers and back.
	Shared []string `json:"shared"`
	// Hidden are directories of the machine that are empty inside the node.
	Hidden   []string  `json:"hidden"`
	PidFile  string    `json:"pid_file"`
	Services []service `json:"services"`
}

// service is a process that is started again whenever it ends, as an init system does.
type service struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// After are files that must exist before the first start.
	After []string `json:"after"`
	Log   string   `json:"log"`
}

// initNode is the first process in the new mount, PID and UTS namespaces of a node: when it is killed, the kernel kills
// every process of the node at once, which is how the lab powers a node off.
func initNode(args []string) error {
	if len(args) != 1 {
		return errors.New("init needs NODE.json")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var n node
	if err := json.Unmarshal(text, &n); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	// /proc is still the host's here, so it tells the PID the host knows.
	identity, err := hostIdentity()
	if err != nil {
		return err
	}
	if err := setUp(n); err != nil {
		return err
	}
	if err := os.WriteFile(n.PidFile+".new", []byte(identity), 0o644); err != nil {
		return err
	}
	if err := os.Rename(n.PidFile+".new", n.PidFile); err != nil {
		return err
	}
	supervise(n.Services)
	return nil
}

// hostIdentity is "PID START": the start time, in clock ticks since boot, tells a recycled PID from the one recorded.
func hostIdentity() (string, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return "", err
	}
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	pid, _, _ := strings.Cut(text, " ")
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/self/stat has an unknown format: %q", text)
	}
	return pid + " " + fields[19], nil
}

func setUp(n node) error {
	if err := syscall.Sethostname([]byte(n.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, dir := range n.Private {
		from := filepath.Join(n.Files, dir)
		if err := os.MkdirAll(from, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(from, dir, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount the node's own %s: %w", dir, err)
		}
	}
	for _, file := range n.PrivateFiles {
		if err := syscall.Mount(filepath.Join(n.Files, file), file, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount the node's own %s: %w", file, err)
		}
	}
	for _, dir := range n.Shared {
		if err := syscall.Mount("", dir, "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
			return fmt.Errorf("share mounts below %s: %w", dir, err)
		}
	}
	for _, dir := range n.Hidden {
		if !exist([]string{dir}) {
			continue
		}
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// supervise starts the services, starts again what has ended, and reaps every orphan. It never returns.
func supervise(services []service) {
	running := map[int]int{}
	due := make([]time.Time, len(services))
	for {
		for i, s := range services {
			if due[i].IsZero() && exist(s.After) {
				due[i] = time.Now()
			}
			if !due[i].IsZero() && !time.Now().Before(due[i]) {
				// Far away: until it has ended.
				due[i] = time.Now().Add(1000000 * time.Hour)
				pid, err := start(s)
				if err != nil {
					fmt.Fprintln(os.Stderr, "start", s.Name+":", err)
					due[i] = time.Now().Add(time.Second)
					continue
				}
				running[pid] = i
			}
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
			if i, ok := running[pid]; ok {
				delete(running, pid)
				due[i] = time.Now().Add(time.Second)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func exist(files []string) bool {
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return false
		}
	}
	return true
}

func start(s service) (int, error) {
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	return syscall.ForkExec(s.Command[0], s.Command, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}
