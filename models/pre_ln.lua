-- Pre-LN: each branch reads a normed copy of the residual stream and adds to it.
local db, bb = require "depthbench", require "backbone"

return db.model(function(ids, targets)
  local x = bb.embed(ids)
  for layer in db.layers(x) do
    x = layer:block(x, function(x)
      local h = x + bb.attention(bb.norm(x, "attn_norm"))
      return h + bb.ffn(bb.norm(h, "ffn_norm"))
    end)
  end
  return bb.loss(x, targets)
end)
