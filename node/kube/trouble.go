package kube

import (
	"context"
	"errors"
	"log/slog"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// A trouble is a kind of error. Errors of one kind differ in ports and times, and are one trouble.
type trouble int

const (
	none        trouble = iota
	unreachable         // no answer
	refused             // by authentication or authorization
	missing             // no such object, or no such kind of objects
	failing             // the API server has trouble of its own
)

// String says what to look at.
func (t trouble) String() string {
	return [...]string{
		none: "none", unreachable: "the API server does not answer", refused: "the API server refuses: are token and RBAC rules right?",
		missing: "there is no such thing: is the CustomResourceDefinition installed?", failing: "the API server has trouble",
	}[t]
}

func troubleOf(err error) trouble {
	var answer apierrors.APIStatus // is no error by itself
	switch {
	case err == nil:
		return none
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsInvalid(err):
		return none // a watch is to begin with a list: that is how it goes on
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
		return refused
	case apierrors.IsNotFound(err):
		return missing
	case errors.As(err, &answer):
		return failing
	}
	return unreachable
}

// withQuietLog makes client-go log at debug level: what matters of its errors comes back to us, who log it once.
func withQuietLog(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(quiet{log.Handler()}))
}

// quiet is a log whose every record is for debugging.
type quiet struct{ slog.Handler }

// Enabled implements [slog.Handler]. What client-go logs below its own info level is for its developers.
func (q quiet) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && q.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements [slog.Handler].
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level = slog.LevelDebug; !q.Handler.Enabled(ctx, r.Level) { // errors come without a question
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

// WithGroup implements [slog.Handler].
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
