package controlplane

import (
	"context"
)

// tellSystemd says that the replica serves, feeds systemd's watchdog while Raft's main
// loop answers, and reads settings again when it is told to. It returns when closed
// ends, which is after the replica has stopped; from the end of ctx on, nothing is read
// again.
func (s *Server) tellSystemd(ctx, closed context.Context) {
	s.notified(ctx, s.cfg.Notifier.Ready("Serving the API on "+s.Addr()))
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		s.cfg.Notifier.Watch(closed, s.log, s.store.Progress)
	}()
	defer func() { <-fed }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-closed.Done():
			return
		case <-s.cfg.Reload:
			s.reload(ctx)
		}
	}
}

// reload reads the tiers again. Certificates need no reload, and other settings are of
// the process's environment: they need a restart.
func (s *Server) reload(ctx context.Context) {
	s.notified(ctx, s.cfg.Notifier.Reloading())
	status := "Serving the API on " + s.Addr()
	if err := s.tiers.Reload(); err != nil {
		s.log.ErrorContext(ctx, "the tiers were not read again: those from before go on", "file", s.cfg.Tiers, "error", err)
		status += "; the tiers could not be read again: " + err.Error()
	} else {
		s.log.InfoContext(ctx, "the tiers were read again", "file", s.cfg.Tiers, "tiers", s.tiers.Names())
	}
	s.notified(ctx, s.cfg.Notifier.Ready(status))
}

// notified logs that systemd was not told: the replica serves all the same.
func (s *Server) notified(ctx context.Context, err error) {
	if err != nil {
		s.log.WarnContext(ctx, "systemd was not told", "error", err)
	}
}
