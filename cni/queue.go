package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/gaggle-cni/gaggle/cni/wire"
)

// Times of the queue.
const (
	replayInterval  = 10 * time.Second // between looks without a reason
	deletionTimeout = 20 * time.Second // of one deletion
	clearTime       = 2 * time.Second  // for which an ADD goes through others' deletions
)

// Replay does the DELs that the plugin kept while no node process was there, as far as the context lets it. Call it before
// [Server.Run]; the server then does it again and again, as a plugin may have found the old process gone and the new one not
// there yet. What fails stays for the next time.
func (s *Server) Replay(ctx context.Context) error {
	paths, err := wire.Queued(s.o.Queue)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("deletions: %w", context.Cause(ctx)))
			break
		}
		if err := s.replay(ctx, path); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// replayUntil replays every replayInterval until the context ends: a plugin that lost patience with this very process has left
// its DEL in the queue, and no ADD may come for a long time.
func (s *Server) replayUntil(ctx context.Context) {
	ticker := time.NewTicker(replayInterval)
	defer ticker.Stop()
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		wire.TidyQueue(s.o.Queue)
		text := ""
		if err := s.Replay(ctx); err != nil {
			text = err.Error()
		}
		if text != failed && text != "" {
			s.o.Log.WarnContext(ctx, "deletions wait to be done", "err", text)
		}
		failed = text
	}
}

// clearWay does the deletion of this very attachment that is still to be done, and then, in a short time, others: they may free
// the address that is needed. Nobody waits for those but the first who comes.
func (s *Server) clearWay(ctx context.Context, id ID) error {
	path := wire.QueuePath(s.o.Queue, wire.Deletion{Network: id.Network, ContainerID: id.ContainerID, IfName: id.IfName})
	waits := func() bool { _, err := os.Stat(path); return !errors.Is(err, fs.ErrNotExist) }
	if waits() {
		if err := s.replay(ctx, path); err != nil {
			s.o.Log.WarnContext(ctx, "a deletion waits to be done", "err", err)
		}
		if waits() {
			return &Error{
				Code: wire.CodeTryAgainLater, Msg: fmt.Sprintf("container %s: an earlier DEL of it is still to be done", id.ContainerID),
				Details: "the node process's log says why",
			}
		}
	}
	if len(s.replaying) > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	if err := s.Replay(ctx); err != nil {
		s.o.Log.DebugContext(ctx, "deletions wait to be done", "err", err) // replayUntil warns
	}
	return nil
}

// replay does one deletion, if it is there.
func (s *Server) replay(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, deletionTimeout)
	defer cancel()
	select { // one at a time: a second reader would delete what came after the first
	case s.replaying <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("deletions: %w", context.Cause(ctx))
	}
	defer func() { <-s.replaying }()
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
	req.Received = time.Now()
	if info, err := os.Stat(path); err == nil && info.ModTime().Before(req.Received) { // unless the clock was set back
		req.Received = info.ModTime()
	}
	if err := s.o.Handler.Del(ctx, req); err != nil {
		return err
	}
	return remove(path)
}

func parseQueued(data []byte) (Request, error) {
	var d wire.Deletion
	if err := json.Unmarshal(data, &d); err != nil {
		return Request{}, fmt.Errorf("decode deletion: %w", err)
	}
	if err := errors.Join(wire.CheckName(d.Network), wire.CheckName(d.ContainerID), wire.CheckIfName(d.IfName)); err != nil {
		return Request{}, fmt.Errorf("deletion: %w", err)
	}
	return Request{ID: ID{Network: d.Network, ContainerID: d.ContainerID, IfName: d.IfName}, Conf: Conf{Name: d.Network}}, nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove deletion: %w", err)
	}
	return nil
}
