package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Hosts keep blobs for apps, such as uploaded sources and logs of deployments. A host keeps
// a blob in its bucket, or on its disk.

// errNoBlobs means that no host that could keep a blob answers. The other errors concern
// the only host that has a blob: it was removed, or does not answer but may come back.
var (
	errNoBlobs  = errors.New("no host that keeps blobs answers")
	errBlobLost = &apierror.Error{Code: apierror.EConflict, Message: "the host that kept it was removed, and no other has it"}
	errBlobAway = &apierror.Error{Code: apierror.EConflict, Message: "the host that keeps it does not answer"}

	errBlobStalled = errors.New("the host takes no more of the blob")
)

// blobHosts returns the available hosts in the order in which to ask them: first, which was
// given the blob, then those with a bucket, then the rest.
func (f *Flows) blobHosts(first string) []string {
	sessions, view := f.Hosts.Sessions(), f.Store.View()
	var ids []string
	for id, s := range sessions {
		if s.Heartbeat.Ready && hostUp(view, id) {
			ids = append(ids, id)
		}
	}
	rank := func(id string) int {
		switch {
		case id == first:
			return 0
		case sessions[id].Heartbeat.Store:
			return 1
		}
		return 2
	}
	slices.SortFunc(ids, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return ids
}

// blobPlace tells where a blob is.
type blobPlace struct {
	host  string // the host that was given the blob; "": unknown
	local bool   // no other host has it
}

// alone returns the only host that has a blob, or "" if others may have it.
func (p blobPlace) alone() string {
	if p.local {
		return p.host
	}
	return ""
}

// lost reports whether a blob is gone for good: the only host that had it was removed.
func (p blobPlace) lost(r raftstore.Reader) bool {
	if !p.local {
		return false
	}
	_, ok := raftstore.Get(r, record.Hosts, p.host)
	return !ok
}

// away reports whether the only host that has a blob does not answer.
func (p blobPlace) away(r raftstore.Reader) bool { return p.local && !hostUp(r, p.host) }

func placeOf(u record.AppUpload) blobPlace { return blobPlace{u.HostID, u.Local} }

func logPlace(d *record.Deployment) blobPlace { return blobPlace{d.LogHost, d.LogHost != ""} }

// putHosts returns the available hosts in the order in which to offer them a new blob. Those
// that are likely to refuse it, or to hang on it, come last: even with a bucket a host first
// writes a blob to its disk. Only the host knows how much of its disk it keeps free.
func (f *Flows) putHosts() []string {
	sessions, view := f.Hosts.Sessions(), f.Store.View()
	poor := func(id string) int {
		s := sessions[id]
		row, known := raftstore.Get(view, record.Hosts, id)
		c := s.Heartbeat.Capacity
		if s.Heartbeat.Draining || known && row.Draining || c.DiskStalledMS >= hosts.MaxDiskStalledMS || c.DiskFreeBytes < hostapi.MaxBlob {
			return 1
		}
		return 0
	}
	ids := f.blobHosts("")
	slices.SortStableFunc(ids, func(a, b string) int { return poor(a) - poor(b) })
	return ids
}

// putBlob stores a blob and returns where. It goes on to the next host as long as the ones
// before refuse without having read any of r, because what was read cannot be read again.
func (f *Flows) putBlob(ctx context.Context, name string, r io.Reader) (at blobPlace, size int64, err error) {
	err = errNoBlobs
	for _, id := range f.putHosts() {
		client, cerr := f.Hosts.Client(id)
		if cerr != nil {
			err = cerr
			continue
		}
		var info hostapi.BlobInfo
		var again bool
		if info, again, err = f.offer(ctx, client, name, r); err == nil {
			return blobPlace{id, info.Local}, info.SizeBytes, nil
		}
		err = fmt.Errorf("put blob %s: %w", name, err)
		if !again || ctx.Err() != nil {
			return blobPlace{host: id}, 0, err
		}
		f.Logger.InfoContext(ctx, "host does not take a blob, another is asked", "agent_id", id, "blob", name, "error", err)
	}
	return blobPlace{}, 0, err
}

// offer sends a blob to one host. If the host fails to take it, again reports whether
// another one may be asked: the reason is this host's own, and r is as it was.
func (f *Flows) offer(ctx context.Context, client *hosts.Client, name string, r io.Reader) (info hostapi.BlobInfo, again bool, err error) {
	ctx, release := f.Hosts.WhileHeard(ctx, client.Host())
	defer release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body := newOffered(r, partTime, keepTime, func() { cancel(errBlobStalled) })
	info, err = client.PutBlob(ctx, name, body)
	untouched := body.end()
	if err == nil {
		return info, false, nil
	}
	if errors.Is(context.Cause(ctx), errBlobStalled) {
		err = fmt.Errorf("%w: %w", errBlobStalled, err)
	}
	own := hosts.Unreachable(err) || hostapi.HasCode(err, hostapi.CodeNoDisk) || hostapi.HasCode(err, hostapi.CodeDraining)
	return info, untouched && own, err
}

// getBlob opens a blob on a host that has it. ctx must live as long as the reader. If a host
// that may have the blob does not answer, hosts.Unreachable is true of the error.
func (f *Flows) getBlob(ctx context.Context, at blobPlace, name string) (io.ReadCloser, int64, error) {
	view := f.Store.View()
	switch {
	case at.lost(view):
		return nil, 0, errBlobLost
	case at.away(view):
		return nil, 0, errBlobAway
	}
	err := errNoBlobs
	for _, id := range f.mayHave(view, at) {
		var body io.ReadCloser
		var size int64
		client, gerr := f.Hosts.Client(id)
		if gerr == nil {
			if body, size, gerr = client.GetBlob(ctx, name); gerr == nil {
				return body, size, nil
			}
		}
		if !hosts.Unreachable(err) {
			err = gerr
		}
	}
	return nil, 0, fmt.Errorf("get blob %s: %w", name, err)
}

// mayHave returns the hosts to ask for a blob.
func (f *Flows) mayHave(r raftstore.Reader, at blobPlace) []string {
	if at.local {
		return []string{at.host}
	}
	ids := f.blobHosts(at.host)
	if at.host != "" && !slices.Contains(ids, at.host) && hostUp(r, at.host) { // a new leader may not have heard it yet
		ids = append(ids, at.host)
	}
	return ids
}

// deleteBlob removes a blob from the only host that has it, or from every host that is up
// if others may have it. It fails if one of them does not answer, or if a new leader has
// not heard it yet. A lost host keeps what is on its disk. For a removed host, nothing is
// left to do.
func (f *Flows) deleteBlob(ctx context.Context, at blobPlace, name string) error {
	view := f.Store.View()
	var on []string
	switch {
	case at.lost(view):
		return nil
	case at.away(view):
		return errBlobAway
	case at.local:
		on = []string{at.host}
	default:
		for _, h := range raftstore.All(view, record.Hosts) {
			if h.State == record.HostUp {
				on = append(on, h.ID)
			}
		}
		if len(on) == 0 {
			return errNoBlobs
		}
	}
	var all error
	for _, id := range on {
		err := f.Hosts.Call(ctx, id, func(ctx context.Context, c *hosts.Client) error { return c.DeleteBlob(ctx, name) })
		if err != nil {
			all = errors.Join(all, fmt.Errorf("delete blob %s on %s: %w", name, id, err))
		}
	}
	return all
}
