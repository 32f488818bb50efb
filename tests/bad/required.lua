-- The mistake is in a file that this one requires; its line is named.
local part = require "parts.broken"
