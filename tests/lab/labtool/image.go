package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

// packImage writes an archive in the format of `docker save` with one layer that holds the given files; the first one is
// the command. ENTRY=FILE puts FILE at /ENTRY, ENTRY=>TARGET a symbolic link.
func packImage(args []string) (err error) {
	if len(args) < 3 {
		return errors.New("image needs OUT.tar NAME:TAG ENTRY=FILE...")
	}
	layer, err := os.CreateTemp("", "layer")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, layer.Close(), os.Remove(layer.Name())) }()
	sum := sha256.New()
	t := tar.NewWriter(io.MultiWriter(layer, sum))
	for _, dir := range []struct {
		name string
		mode int64
	}{{"bin/", 0o755}, {"etc/", 0o755}, {"tmp/", 0o1777}, {"usr/", 0o755}, {"usr/local/", 0o755}, {"usr/local/bin/", 0o755}} {
		if err := t.WriteHeader(&tar.Header{Name: dir.name, Typeflag: tar.TypeDir, Mode: dir.mode}); err != nil {
			return err
		}
	}
	command := ""
	for _, arg := range args[2:] {
		entry, file, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("image: %q is not ENTRY=FILE", arg)
		}
		if command == "" {
			command = "/" + entry
		}
		if target, link := strings.CutPrefix(file, ">"); link {
			err = t.WriteHeader(&tar.Header{Name: entry, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777})
		} else {
			err = addFile(t, entry, file)
		}
		if err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": "2026-01-01T00:00:00Z", "history": []any{},
		"config": map[string]any{"Env": []string{"PATH=/usr/local/bin:/bin"}, "Cmd": []string{command}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
	})
	if err != nil {
		return err
	}
	configSum := sha256.Sum256(config)
	configName := hex.EncodeToString(configSum[:]) + ".json"
	manifest, err := json.Marshal([]any{map[string]any{"Config": configName, "RepoTags": []string{args[1]}, "Layers": []string{digest + "/layer.tar"}}})
	if err != nil {
		return err
	}
	out, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	o := tar.NewWriter(out)
	if err := addFile(o, digest+"/layer.tar", layer.Name()); err != nil {
		return err
	}
	for name, content := range map[string][]byte{configName: config, "manifest.json": manifest} {
		if err := o.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		if _, err := io.Copy(o, bytes.NewReader(content)); err != nil {
			return err
		}
	}
	return o.Close()
}

func addFile(t *tar.Writer, entry, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Name: entry, Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}
