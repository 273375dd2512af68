package gobgp

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// An engineLog passes the engine's messages on, each a step lower than the engine thinks: what matters to an operator is
// logged here, in the words of this project.
type engineLog struct {
	next  slog.Handler
	level *slog.LevelVar
	state *logState // shared by the handlers that slog derives
}

type logState struct {
	silent  atomic.Bool
	warning atomic.Pointer[string]
}

func newEngineLog(log *slog.Logger) *engineLog {
	return &engineLog{next: log.Handler(), level: new(slog.LevelVar), state: new(logState)}
}

// Enabled implements [slog.Handler].
func (l *engineLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || l.next.Enabled(ctx, lower(level))
}

// Handle implements [slog.Handler].
func (l *engineLog) Handle(ctx context.Context, r slog.Record) error {
	if l.state.silent.Load() {
		return nil
	}
	if r.Level >= slog.LevelWarn {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
		l.state.warning.Store(&text)
	}
	r.Level = lower(r.Level)
	if !l.next.Enabled(ctx, r.Level) {
		return nil
	}
	r.AddAttrs(slog.String("source", "gobgp"))
	return l.next.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (l *engineLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &engineLog{l.next.WithAttrs(attrs), l.level, l.state}
}

// WithGroup implements [slog.Handler].
func (l *engineLog) WithGroup(name string) slog.Handler {
	return &engineLog{l.next.WithGroup(name), l.level, l.state}
}

func (l *engineLog) quiet() { l.state.silent.Store(true) }

func (l *engineLog) lastWarning() string {
	if w := l.state.warning.Load(); w != nil {
		return *w
	}
	return "it does not appear"
}

func lower(level slog.Level) slog.Level { return level - 4 } // a step of slog's levels
