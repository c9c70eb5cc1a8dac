package record

import (
	"fmt"
	"slices"
)

// transitions is the state table of a kind of record: the statuses that may follow
// each. Under "" are those of a new row. The control store enforces the table at
// every Put, so no row has a status that is not in it.
type transitions[S ~string] map[S][]S

// allow reports whether a row may go from one status to another. A status may always
// stay the same.
func (t transitions[S]) allow(from, to S) bool {
	_, known := t[to]
	return known && to != "" && (from == to || slices.Contains(t[from], to))
}

// check is the error of a row that may not go from one status to another.
func (t transitions[S]) check(from, to S) error {
	if t.allow(from, to) {
		return nil
	}
	return fmt.Errorf("no transition from %q to %q", from, to)
}

// checked is the Check of a table whose rows have a status.
func checked[T comparable, S ~string](t transitions[S], status func(T) S) func(before, after T) error {
	return func(before, after T) error {
		var none T
		from := S("")
		if before != none {
			from = status(before)
		}
		return t.check(from, status(after))
	}
}

// The row does not see what happens on a host between two of its reports, so the
// statuses of a sandbox that is up follow each other in any order. A failed sandbox
// is up again when its host was silent and returns with it.
var sandboxTransitions = transitions[SandboxStatus]{
	"":                {SandboxStarting},
	SandboxStarting:   {SandboxRunning, SandboxDeleting},
	SandboxRunning:    {SandboxPaused, SandboxHibernated, SandboxFailed, SandboxDeleting},
	SandboxPaused:     {SandboxRunning, SandboxHibernated, SandboxFailed, SandboxDeleting},
	SandboxHibernated: {SandboxRunning, SandboxPaused, SandboxFailed, SandboxDeleting},
	SandboxFailed:     {SandboxRunning, SandboxPaused, SandboxHibernated, SandboxDeleting},
	SandboxDeleting:   {},
}

var snapshotTransitions = transitions[ResourceStatus]{
	"":               {ResourceCreating},
	ResourceCreating: {ResourceReady, ResourceDeleting},
	ResourceReady:    {ResourceLost, ResourceDeleting},
	ResourceLost:     {ResourceReady, ResourceDeleting},
	ResourceDeleting: {},
}

var volumeTransitions = transitions[ResourceStatus]{
	"":               {ResourceCreating},
	ResourceCreating: {ResourceReady, ResourceDeleting},
	ResourceReady:    {ResourceDeleting},
	ResourceDeleting: {},
}

var databaseTransitions = transitions[DatabaseStatus]{
	"":                   {DatabaseProvisioning},
	DatabaseProvisioning: {DatabaseReady, DatabaseFailed, DatabaseDeleting},
	DatabaseReady:        {DatabaseRestoring, DatabaseFailed, DatabaseDeleting},
	DatabaseRestoring:    {DatabaseReady, DatabaseFailed, DatabaseDeleting},
	DatabaseFailed:       {DatabaseReady, DatabaseRestoring, DatabaseDeleting},
	DatabaseDeleting:     {},
}

// A template with a build stays ready during further builds. One that was built by
// hand on a host is ready at once.
var templateTransitions = transitions[TemplateStatus]{
	"":               {TemplateUnbuilt, TemplateBuilding, TemplateReady},
	TemplateUnbuilt:  {TemplateBuilding, TemplateReady},
	TemplateBuilding: {TemplateReady, TemplateFailed},
	TemplateFailed:   {TemplateBuilding, TemplateReady},
	TemplateReady:    {},
}

var buildTransitions = transitions[TemplateStatus]{
	"":               {TemplateQueued, TemplateReady},
	TemplateQueued:   {TemplateBuilding, TemplateReady, TemplateFailed},
	TemplateBuilding: {TemplateQueued, TemplateReady, TemplateFailed},
	TemplateReady:    {},
	TemplateFailed:   {},
}

var webhookTransitions = transitions[WebhookStatus]{
	"":               {WebhookPending},
	WebhookPending:   {WebhookDelivered, WebhookFailed, WebhookDead},
	WebhookFailed:    {WebhookPending, WebhookDelivered, WebhookDead},
	WebhookDelivered: {WebhookPending},
	WebhookDead:      {WebhookPending},
}

var appTransitions = transitions[AppStatus]{
	"":            {AppCreated},
	AppCreated:    {AppRunning, AppDeleting},
	AppRunning:    {AppHibernated, AppWaking, AppFailed, AppDeleting},
	AppHibernated: {AppWaking, AppRunning, AppDeleting},
	AppWaking:     {AppRunning, AppHibernated, AppFailed, AppDeleting},
	AppFailed:     {AppWaking, AppRunning, AppHibernated, AppDeleting},
	AppDeleting:   {},
}

// A rollback has nothing to build. One whose artifact does not start is built all the
// same, and so is any other whose host is lost before it is live.
var deploymentTransitions = transitions[DeploymentStatus]{
	"":                  {DeploymentQueued},
	DeploymentQueued:    {DeploymentBuilding, DeploymentDeploying, DeploymentFailed},
	DeploymentBuilding:  {DeploymentDeploying, DeploymentFailed},
	DeploymentDeploying: {DeploymentLive, DeploymentBuilding, DeploymentFailed},
	DeploymentLive:      {},
	DeploymentFailed:    {},
}

var domainTransitions = transitions[DomainStatus]{
	"":             {DomainPending},
	DomainPending:  {DomainVerified, DomainFailed},
	DomainVerified: {DomainFailed},
	DomainFailed:   {DomainPending, DomainVerified},
}

var hostTransitions = transitions[HostState]{
	"":       {HostLost}, // until it is heard
	HostUp:   {HostLost},
	HostLost: {HostUp},
}
