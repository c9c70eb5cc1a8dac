package api

// FunctionRuntime is what runs a function's handler.
type FunctionRuntime string

// The runtimes.
const (
	RuntimePython FunctionRuntime = "python"
	RuntimeNode   FunctionRuntime = "node"
)

// Function is a handler that is called by requests, and runs only while there are some.
type Function struct {
	ID             string            `json:"id"`
	Name           string            `json:"name"` // that no other function of the workspace has
	Runtime        FunctionRuntime   `json:"runtime"`
	Status         AppStatus         `json:"status"`          // created until its first deployment is live
	TimeoutSeconds int               `json:"timeout_seconds"` // that an invocation may take
	Env            map[string]string `json:"env"`             // secret values are masked
	Instances      int               `json:"instances"`       // that serve now; 0 while it hibernates
	DeploymentID   string            `json:"deployment_id"`   // the one that is served; "": none yet
	LastInvokedAt  *Time             `json:"last_invoked_at"` // to the minute; null: not yet
	CreatedAt      Time              `json:"created_at"`
	UpdatedAt      Time              `json:"updated_at"`
	Error          string            `json:"error,omitempty"` // why it is failed
}

// CreateFunction is the body of POST /v1/functions.
type CreateFunction struct {
	Name           string          `json:"name" maxLength:"100"`
	Runtime        FunctionRuntime `json:"runtime"`
	Env            StringMap       `json:"env,omitempty"`
	TimeoutSeconds *int            `json:"timeout_seconds,omitempty" minimum:"1" maximum:"240"` // default 30
}

// PatchFunction is the body of PATCH /v1/functions/{id}. What is absent stays as it is;
// null is the default. A change of env or timeout_seconds makes the next wake build the
// function anew.
type PatchFunction struct {
	Name           Patch[string]    `json:"name,omitzero" maxLength:"100"`
	Env            Patch[StringMap] `json:"env,omitzero"` // replaces all variables
	TimeoutSeconds Patch[int]       `json:"timeout_seconds,omitzero" minimum:"1" maximum:"240"`
}

// DeployFunction is the body of POST /v1/functions/{id}/deploy, where it is JSON. What
// does not fit, or is no text, is sent as a tar.gz.
type DeployFunction struct {
	Files StringMap `json:"files"` // texts by name, 8 MiB together
}
