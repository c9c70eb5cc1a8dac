package hostapi

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// PutCapture captures a box and waits until the capture is complete, or answers
// with the one that is there.
func (c *Client) PutCapture(ctx context.Context, id string, spec CaptureSpec) (Capture, error) {
	var out Capture
	return out, c.do(ctx, http.MethodPut, PathCaptures+"/"+url.PathEscape(id), spec, &out)
}

// Captures returns every complete capture of the host.
func (c *Client) Captures(ctx context.Context) ([]Capture, error) {
	var out []Capture
	return out, c.do(ctx, http.MethodGet, PathCaptures, nil, &out)
}

// Capture returns one capture, or CodeNoSnapshot.
func (c *Client) Capture(ctx context.Context, id string) (Capture, error) {
	var out Capture
	return out, c.do(ctx, http.MethodGet, PathCaptures+"/"+url.PathEscape(id), nil, &out)
}

// StoreCapture uploads a capture to the snapshot store and waits until it is
// complete there.
func (c *Client) StoreCapture(ctx context.Context, id string) (Capture, error) {
	var out Capture
	return out, c.do(ctx, http.MethodPost, PathCaptures+"/"+url.PathEscape(id)+"/store", struct{}{}, &out)
}

// QueryStored of a DELETE of a capture says whether the stored copy goes as well.
const QueryStored = "stored"

// DeleteCapture removes a capture from the host, and with stored from the
// snapshot store. One that is gone is no error.
func (c *Client) DeleteCapture(ctx context.Context, id string, stored bool) error {
	path := PathCaptures + "/" + url.PathEscape(id)
	if stored {
		path += "?" + QueryStored + "=true"
	}
	return gone(c.do(ctx, http.MethodDelete, path, nil, nil), CodeNotFound, CodeNoSnapshot)
}

// The parameters of PathStored: the cluster's name in the store, which is claimed
// for it if it is nobody's yet; the id to begin after, none for the first page;
// and how many ids are wanted, at most and by default MaxStoredPage.
const (
	QueryOwner = "owner"
	QueryAfter = "after"
	QueryLimit = "limit"
)

// Stored returns what is in an owner's snapshot store after an id, at most limit
// ids of it. Another's is CodeForeignStore.
func (c *Client) Stored(ctx context.Context, owner, after string, limit int) (StoredPage, error) {
	var out StoredPage
	query := url.Values{QueryOwner: {owner}, QueryAfter: {after}, QueryLimit: {strconv.Itoa(limit)}}
	return out, c.do(ctx, http.MethodGet, PathStored+"?"+query.Encode(), nil, &out)
}

// PutVolume makes a volume, or answers with the one that is there.
func (c *Client) PutVolume(ctx context.Context, id string, spec VolumeSpec) (Volume, error) {
	var out Volume
	return out, c.do(ctx, http.MethodPut, PathVolumes+"/"+url.PathEscape(id), spec, &out)
}

// Volumes returns every volume of the host.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	var out []Volume
	return out, c.do(ctx, http.MethodGet, PathVolumes, nil, &out)
}

// Volume returns one volume, or CodeNotFound.
func (c *Client) Volume(ctx context.Context, id string) (Volume, error) {
	var out Volume
	return out, c.do(ctx, http.MethodGet, PathVolumes+"/"+url.PathEscape(id), nil, &out)
}

// DeleteVolume removes a volume and what it holds; CodeInUse while it is
// attached. One that is gone is no error.
func (c *Client) DeleteVolume(ctx context.Context, id string) error {
	return gone(c.do(ctx, http.MethodDelete, PathVolumes+"/"+url.PathEscape(id), nil, nil), CodeNotFound)
}

// PutBuild begins a build and does not wait for it, or answers with the one
// that is there.
func (c *Client) PutBuild(ctx context.Context, id string, spec BuildSpec) (Build, error) {
	var out Build
	return out, c.do(ctx, http.MethodPut, PathBuilds+"/"+url.PathEscape(id), spec, &out)
}

// Build returns one build, or CodeNotFound.
func (c *Client) Build(ctx context.Context, id string) (Build, error) {
	var out Build
	return out, c.do(ctx, http.MethodGet, PathBuilds+"/"+url.PathEscape(id), nil, &out)
}

// DeleteBuild ends a build that goes on and forgets it. The template of one
// that succeeded stays.
func (c *Client) DeleteBuild(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodDelete, PathBuilds+"/"+url.PathEscape(id), nil, nil)
}

// BuildLogs returns what a build has said until now, as text. The caller closes it.
func (c *Client) BuildLogs(ctx context.Context, id string) (io.ReadCloser, error) {
	return c.text(ctx, PathBuilds+"/"+url.PathEscape(id)+"/logs")
}

// FollowBuildLogs returns what a build has said and will say, until it ends.
// The caller closes it.
func (c *Client) FollowBuildLogs(ctx context.Context, id string) (*Follower[LogLine], error) {
	return follow[LogLine](ctx, c, PathBuilds+"/"+url.PathEscape(id)+"/logs?follow=true")
}

// DeleteTemplate removes a template from the host's store; CodeInUse while
// something needs it. One that is gone is no error.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodDelete, PathTemplates+"/"+url.PathEscape(name), nil, nil)
}
