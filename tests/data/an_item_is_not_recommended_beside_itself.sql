select item_id
from {{ ref('recommendations') }}
where item_id = recommended_item_id
