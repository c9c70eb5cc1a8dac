const app = require("express")();
app.get("/", (req, res) => res.send("hello from express"));
app.listen(process.env.PORT, process.env.HOST);
