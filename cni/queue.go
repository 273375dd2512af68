package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// Replay does the DELs that the plugin kept while no node process was there. Call it before [Server.Run]; the server does it
// again before each ADD, as a plugin may have found the old process gone and the new one not there yet. What fails stays for
// the next time.
func (s *Server) Replay(ctx context.Context) error {
	s.replaying.Lock()
	defer s.replaying.Unlock()
	paths, err := wire.Queued(s.o.Queue)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		if err := s.replay(ctx, path); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *Server) replay(ctx context.Context, path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the plugin has reached us after all
	}
	if err != nil {
		return fmt.Errorf("read deletion: %w", err)
	}
	req, err := parseQueued(data)
	if err != nil {
		// It will not become readable. Nothing is lost: what it was about has no container, and GC finds it.
		s.o.Log.WarnContext(ctx, "dropped an unreadable deletion", "path", path, "err", err)
		return remove(path)
	}
	if err := s.o.Handler.Del(ctx, req); err != nil {
		return err
	}
	return remove(path)
}

func parseQueued(data []byte) (Request, error) {
	var w wire.Request
	if err := json.Unmarshal(data, &w); err != nil {
		return Request{}, fmt.Errorf("decode deletion: %w", err)
	}
	if w.Command != "DEL" {
		return Request{}, fmt.Errorf("command %q in the queue of deletions", clip(w.Command, 50))
	}
	return parse(w, nil)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove deletion: %w", err)
	}
	return nil
}
